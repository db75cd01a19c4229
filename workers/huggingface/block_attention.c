/* Attention of tokens over cached keys and values, in one pass over each; those of a sequence lie in blocks.
 *
 * Each token has its own length, so nothing is read that is not seen. Heads that share keys and values are computed
 * together, so that these are read once. All numbers are float32. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_LINE 64 /* bytes */

typedef struct { /* as `block_attention.py` lays it out: eight bytes each, up to `longest` */
    const float *queries; /* (tokens, key-value heads, groups, head size), by the strides */
    const float *keys;    /* (blocks, key-value heads, places, head size) */
    const float *values;
    float *output;            /* (tokens, key-value heads, groups, head size), contiguous */
    const int64_t *positions; /* of each token; it sees all up to this one */
    const int64_t *rows;      /* of each token: which table it reads through */
    const int64_t *tables;    /* (rows, blocks of the longest) */
    int64_t tokens, heads, groups, size, table_len, block_len;
    int64_t query_token, query_head, kv_block, kv_head; /* strides, in numbers */
    int64_t window;                                     /* positions that are seen at most */
    int64_t longest;                                    /* positions of the longest sequence */
    float scale;
} Call;

/* e^x for x <= 0, to float32's accuracy (Cephes' polynomial); the compiler's own is not computed in vectors. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float n = rintf(x * 1.44269504f);
    const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return (p * r * r + r + 1.0f) * power;
}

/* The same loops for several processors, so that a wheel serves them all: the best that this one has is taken. */
#define TARGET
#define WIDTH 16
#define NAMED(name) name##_any
#include "block_attention_loops.h"

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define WIDTH 32
#define NAMED(name) name##_avx2
#include "block_attention_loops.h"

#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma")))
#define WIDTH 64
#define NAMED(name) name##_avx512
#include "block_attention_loops.h"
#endif

static void attend(const Call *call, float *weights, const int64_t size) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
        attend_avx512(call, weights, size);
        return;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        attend_avx2(call, weights, size);
        return;
    }
#endif
    attend_any(call, weights, size);
}

static PyObject *block_attention(PyObject *module, PyObject *arguments) {
    (void)module;
    Call call = {.longest = 0};
    unsigned long long address;
    if (!PyArg_ParseTuple(arguments, "Kf:attend", &address, &call.scale)) return NULL;
    memcpy(&call, (const void *)(uintptr_t)address, offsetof(Call, longest));
    for (int64_t token = 0; token < call.tokens; token++)
        if (call.positions[token] >= call.longest) call.longest = call.positions[token] + 1;
    float *weights = malloc(sizeof(float) * call.groups * call.longest);
    if (weights == NULL) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    attend(&call, weights, call.size);
    Py_END_ALLOW_THREADS
    free(weights);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"attend", block_attention, METH_VARARGS, "Attend through tables of blocks: the address of a Call, and the scale."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_block_kernel", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__block_kernel(void) { return PyModule_Create(&definition); }
