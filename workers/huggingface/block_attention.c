/* Attention of tokens over cached keys and values, in one pass over each; those of a sequence lie in blocks.
 *
 * Tokens whose sequences begin in the same blocks read these together (as Hydragen and cascade attention do).
 * Each token has its own length, so nothing is read that is not seen. Heads that share keys and values are computed
 * together, so that these are read once. Keys and values are float32, or float16 that is widened when it is read; all else
 * is float32. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_LINE 64 /* bytes */
#define WIDEST 512 /* numbers of a head that can be widened */
#define STRETCH 16 /* places that are computed together for a head */
#define MOST_TOGETHER 16 /* tokens; the weights of as many should stay in the cache */

typedef struct {
    const float *queries; /* (tokens, key-value heads, groups, head size), by the strides */
    const void *keys;     /* (blocks, key-value heads, places, head size) */
    const void *values;
    float *output;            /* (tokens, key-value heads, groups, head size), contiguous */
    const int64_t *positions; /* of each token; it sees all up to this one */
    const int64_t *rows;      /* of each token: which table it reads through */
    const int64_t *tables;    /* (rows, blocks of the longest) */
    const int64_t *shared;    /* of each token: places that it and the next token see in the same blocks; whole blocks */
    int64_t tokens, heads, groups, table_len, block_len, longest;
    int64_t query_token, query_head, kv_block, kv_head; /* strides, in numbers */
    int64_t window;                                     /* positions that are seen at most */
    float scale;
    int is_half; /* whether keys and values are float16 */
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

/* What a half-precision number (IEEE 754 binary16) is as a float, in whole-number arithmetic: every such number has one. */
static inline float widened(const uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = (uint32_t)(half & 0x7fff) << 13;
    uint32_t bits = sign | (rest + (rest >= 0x7c00u << 13 ? 224u << 23 : 112u << 23)); /* the exponent's offset; or infinite */
    float number;
    if (rest < 0x0400u << 13) { /* below the normal numbers: so many times 2^-24 */
        number = (float)(half & 0x03ff) * 5.9604644775390625e-8f;
        memcpy(&bits, &number, sizeof bits);
        bits |= sign;
    }
    memcpy(&number, &bits, sizeof number);
    return number;
}

static inline const float *widen_each(const uint16_t *from, float *wide, const int64_t size) {
    for (int64_t i = 0; i < size; i++) wide[i] = widened(from[i]);
    return wide;
}

/* The same loops for several processors, so that a wheel serves them all: the best that this one has is taken. */
#define IN_PLACE(from, wide, size) ((void)(wide), (from))

#define TARGET
#define WIDTH 16
#define NAMED(name) name##_float32
#define ELEMENT float
#define WIDEN IN_PLACE
#include "block_attention_loops.h"

#define TARGET
#define WIDTH 16
#define NAMED(name) name##_float16
#define ELEMENT uint16_t
#define WIDEN widen_each
#include "block_attention_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma,f16c"))) /* f16c is older than avx2: no processor has this one alone */
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma,f16c")))

static inline __attribute__((always_inline)) AVX2 const float *widen_8(
    const uint16_t *from, float *wide, const int64_t size) {
    int64_t i = 0;
    for (; i + 8 <= size; i += 8) _mm256_storeu_ps(wide + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    for (; i < size; i++) wide[i] = widened(from[i]);
    return wide;
}

static inline __attribute__((always_inline)) AVX512 const float *widen_16(
    const uint16_t *from, float *wide, const int64_t size) {
    int64_t i = 0;
    for (; i + 16 <= size; i += 16)
        _mm512_storeu_ps(wide + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + i))));
    for (; i < size; i++) wide[i] = widened(from[i]);
    return wide;
}

#define TARGET AVX2
#define WIDTH 32
#define NAMED(name) name##_float32_avx2
#define ELEMENT float
#define WIDEN IN_PLACE
#include "block_attention_loops.h"

#define TARGET AVX2
#define WIDTH 32
#define NAMED(name) name##_float16_avx2
#define ELEMENT uint16_t
#define WIDEN widen_8
#include "block_attention_loops.h"

#define TARGET AVX512
#define WIDTH 64
#define NAMED(name) name##_float32_avx512
#define ELEMENT float
#define WIDEN IN_PLACE
#include "block_attention_loops.h"

#define TARGET AVX512
#define WIDTH 64
#define NAMED(name) name##_float16_avx512
#define ELEMENT uint16_t
#define WIDEN widen_16
#include "block_attention_loops.h"
#endif

static void attend(const Call *call, float *weights, const int64_t size) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
        (call->is_half ? attend_float16_avx512 : attend_float32_avx512)(call, weights, size);
        return;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        (call->is_half ? attend_float16_avx2 : attend_float32_avx2)(call, weights, size);
        return;
    }
#endif
    (call->is_half ? attend_float16 : attend_float32)(call, weights, size);
}

static PyObject *block_attention(PyObject *module, PyObject *arguments) {
    (void)module;
    Call call = {.is_half = 0};
    unsigned long long queries, keys, values, output, positions, rows, tables, shared;
    long long tokens, heads, groups, size, table_len, block_len, query_token, query_head, kv_block, kv_head, window;
    if (!PyArg_ParseTuple(
            arguments, "KKKKKKKKLLLLLLLLLLLf|p:block_attention", &queries, &keys, &values, &output, &positions, &rows,
            &tables, &shared, &tokens, &heads, &groups, &size, &table_len, &block_len, &query_token, &query_head, &kv_block,
            &kv_head, &window, &call.scale, &call.is_half))
        return NULL;
    call.queries = (const float *)(uintptr_t)queries;
    call.keys = (const void *)(uintptr_t)keys;
    call.values = (const void *)(uintptr_t)values;
    call.output = (float *)(uintptr_t)output;
    call.positions = (const int64_t *)(uintptr_t)positions;
    call.rows = (const int64_t *)(uintptr_t)rows;
    call.tables = (const int64_t *)(uintptr_t)tables;
    call.shared = (const int64_t *)(uintptr_t)shared;
    call.tokens = tokens, call.heads = heads, call.groups = groups;
    call.table_len = table_len, call.block_len = block_len;
    call.query_token = query_token, call.query_head = query_head, call.kv_block = kv_block, call.kv_head = kv_head;
    call.window = window;
    int64_t longest = 0;
    for (int64_t token = 0; token < tokens; token++)
        if (call.positions[token] >= longest) longest = call.positions[token] + 1;
    call.longest = longest;
    float *weights = malloc(sizeof(float) * groups * longest * (tokens < MOST_TOGETHER ? tokens : MOST_TOGETHER));
    if (weights == NULL) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    attend(&call, weights, size);
    Py_END_ALLOW_THREADS
    free(weights);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"block_attention", block_attention, METH_VARARGS, "Attend through tables of blocks; addresses, sizes and strides."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_block_attention", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__block_attention(void) { return PyModule_Create(&definition); }
