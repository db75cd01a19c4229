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

#define LINE 16 /* numbers that the processor fetches at once */
#define INLINE static inline __attribute__((always_inline))

typedef struct { /* as `attention.py` lays it out: eight bytes each, up to `longest` */
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
INLINE float exponential(float x) {
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

/* The scores of one token's heads at the places of one block. */
INLINE void score(
    const Call *call, const float *queries, const float *keys, const int64_t num_places, float *weights, const int64_t size) {
    for (int64_t group = 0; group < call->groups; group++) {
        const float *query = queries + group * call->query_head;
        for (int64_t place = 0; place < num_places; place++) {
            float sum = 0.0f;
            for (int64_t i = 0; i < size; i++) sum += query[i] * keys[place * size + i];
            weights[group * call->longest + place] = sum * call->scale;
        }
    }
}

/* Adds the weighted values of some places to one head's sums. These overlap with nothing, so registers can hold them. */
INLINE void add_weighted(
    const float *weights, const float *values, const int64_t num_places, float *restrict output, const int64_t size) {
    for (int64_t place = 0; place < num_places; place++)
        for (int64_t i = 0; i < size; i++) output[i] += weights[place] * values[place * size + i];
}

/* Turns the scores of one token's heads into weights, and clears the places in which values are summed up. */
INLINE void weigh(const Call *call, const int64_t number, float *weights, float *output, const int64_t size) {
    for (int64_t group = 0; group < call->groups; group++) {
        float *weight = weights + group * call->longest, sum = 0.0f, highest = -FLT_MAX;
        for (int64_t i = 0; i < number; i++) highest = weight[i] > highest ? weight[i] : highest;
        for (int64_t i = 0; i < number; i++) weight[i] = exponential(weight[i] - highest);
        for (int64_t i = 0; i < number; i++) sum += weight[i];
        for (int64_t i = 0; i < number; i++) weight[i] *= 1.0f / sum;
        for (int64_t i = 0; i < size; i++) output[group * size + i] = 0.0f;
    }
}

INLINE void attend_tokens(const Call *call, float *weights, const int64_t size) {
    const int64_t block_len = call->block_len, groups = call->groups;
    for (int64_t token = 0; token < call->tokens; token++) {
        const int64_t *table = call->tables + call->rows[token] * call->table_len;
        const int64_t stop = call->positions[token] + 1, start = stop > call->window ? stop - call->window : 0;
        for (int64_t head = 0; head < call->heads; head++) {
            const float *queries = call->queries + token * call->query_token + head * groups * call->query_head;
            float *output = call->output + (token * call->heads + head) * groups * size;
            for (int64_t over_values = 0; over_values < 2; over_values++) {
                for (int64_t place = start, end; place < stop; place = end) {
                    const int64_t block = place / block_len, offset = head * call->kv_head + place % block_len * size;
                    end = (block + 1) * block_len < stop ? (block + 1) * block_len : stop;
                    const float *states = (over_values ? call->values : call->keys) + table[block] * call->kv_block + offset;
                    if (end < stop) { /* blocks lie apart, so the processor does not look ahead by itself */
                        const float *next = states + (table[block + 1] - table[block]) * call->kv_block;
                        for (int64_t i = 0; i < (end - place) * size; i += LINE) __builtin_prefetch(next + i);
                    }
                    if (!over_values) score(call, queries, states, end - place, weights + place - start, size);
                    else
                        for (int64_t group = 0; group < groups; group++)
                            add_weighted(
                                weights + group * call->longest + place - start, states, end - place, output + group * size,
                                size);
                }
                if (!over_values) weigh(call, stop - start, weights, output, size);
            }
        }
    }
}

#if defined(__x86_64__) && defined(__GLIBC__) /* the best that this processor has is taken when the module is loaded */
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
static void attend(const Call *call, float *weights, const int64_t size) {
    switch (size) { /* a size that the compiler knows is computed in registers */
        case 16: attend_tokens(call, weights, 16); break;
        case 32: attend_tokens(call, weights, 32); break;
        case 64: attend_tokens(call, weights, 64); break;
        case 128: attend_tokens(call, weights, 128); break;
        default: attend_tokens(call, weights, size);
    }
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
