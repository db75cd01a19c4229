/* Attention of tokens over cached keys and values, in one pass over each; those of a sequence lie in blocks.
 *
 * Each token has its own length, so nothing is read that is not seen. Heads that share keys and values are computed
 * together, so that these are read once. float32. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const float *queries; /* (tokens, key-value heads, groups, head size), by the strides */
    const float *keys;    /* (blocks, key-value heads, places, head size) */
    const float *values;
    float *output;            /* (tokens, key-value heads, groups, head size), contiguous */
    const int64_t *positions; /* of each token; it sees all up to this one */
    const int64_t *rows;      /* of each token: which table it reads through */
    const int64_t *tables;    /* (rows, blocks of the longest) */
    int64_t tokens, heads, groups, table_len, block_len;
    int64_t query_token, query_head, kv_block, kv_head; /* strides, in numbers */
    int64_t window;                                     /* positions that are seen at most */
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

static inline __attribute__((always_inline)) void attend_tokens(const Call *call, float *weights, const int64_t size) {
    const int64_t groups = call->groups, block_len = call->block_len;
    for (int64_t token = 0; token < call->tokens; token++) {
        const int64_t *table = call->tables + call->rows[token] * call->table_len;
        const int64_t stop = call->positions[token] + 1;
        const int64_t start = stop > call->window ? stop - call->window : 0;
        for (int64_t head = 0; head < call->heads; head++) {
            const float *queries = call->queries + token * call->query_token + head * groups * call->query_head;
            float *output = call->output + (token * call->heads + head) * groups * size;
            for (int64_t place = start; place < stop;) {
                const int64_t block = place / block_len, first = block * block_len;
                const int64_t end = first + block_len < stop ? first + block_len : stop;
                const float *keys = call->keys + table[block] * call->kv_block + head * call->kv_head;
                for (; place < end; place++) {
                    const float *key = keys + (place - first) * size;
                    for (int64_t group = 0; group < groups; group++) {
                        const float *query = queries + group * call->query_head;
                        float score = 0.0f;
                        for (int64_t i = 0; i < size; i++) score += query[i] * key[i];
                        weights[group * stop + place] = score * call->scale;
                    }
                }
            }
            for (int64_t group = 0; group < groups; group++) {
                float *weight = weights + group * stop;
                float highest = -FLT_MAX, sum = 0.0f;
                for (int64_t place = start; place < stop; place++) highest = weight[place] > highest ? weight[place] : highest;
                for (int64_t place = start; place < stop; place++) weight[place] = exponential(weight[place] - highest);
                for (int64_t place = start; place < stop; place++) sum += weight[place];
                for (int64_t place = start; place < stop; place++) weight[place] *= 1.0f / sum;
                for (int64_t i = 0; i < size; i++) output[group * size + i] = 0.0f;
            }
            for (int64_t place = start; place < stop;) {
                const int64_t block = place / block_len, first = block * block_len;
                const int64_t end = first + block_len < stop ? first + block_len : stop;
                const float *values = call->values + table[block] * call->kv_block + head * call->kv_head;
                for (; place < end; place++) {
                    const float *value = values + (place - first) * size;
                    for (int64_t group = 0; group < groups; group++) {
                        const float weight = weights[group * stop + place];
                        for (int64_t i = 0; i < size; i++) output[group * size + i] += weight * value[i];
                    }
                }
            }
        }
    }
}

static inline __attribute__((always_inline)) void attend_sized(const Call *call, float *weights, const int64_t size) {
    switch (size) { /* a size that the compiler knows is computed in registers */
        case 16: attend_tokens(call, weights, 16); break;
        case 32: attend_tokens(call, weights, 32); break;
        case 64: attend_tokens(call, weights, 64); break;
        case 128: attend_tokens(call, weights, 128); break;
        default: attend_tokens(call, weights, size);
    }
}

/* The same loops for several processors, so that a wheel serves them all: the best that this one has is taken. */
#if defined(__x86_64__)
__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma"))) static void attend_avx512(
    const Call *call, float *weights, const int64_t size) {
    attend_sized(call, weights, size);
}

__attribute__((target("avx2,fma"))) static void attend_avx2(const Call *call, float *weights, const int64_t size) {
    attend_sized(call, weights, size);
}
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
    attend_sized(call, weights, size);
}

static PyObject *block_attention(PyObject *module, PyObject *arguments) {
    (void)module;
    Call call;
    unsigned long long queries, keys, values, output, positions, rows, tables;
    long long tokens, heads, groups, size, table_len, block_len, query_token, query_head, kv_block, kv_head, window;
    if (!PyArg_ParseTuple(
            arguments, "KKKKKKKLLLLLLLLLLLf:block_attention", &queries, &keys, &values, &output, &positions, &rows,
            &tables, &tokens, &heads, &groups, &size, &table_len, &block_len, &query_token, &query_head, &kv_block,
            &kv_head, &window, &call.scale))
        return NULL;
    call.queries = (const float *)(uintptr_t)queries;
    call.keys = (const float *)(uintptr_t)keys;
    call.values = (const float *)(uintptr_t)values;
    call.output = (float *)(uintptr_t)output;
    call.positions = (const int64_t *)(uintptr_t)positions;
    call.rows = (const int64_t *)(uintptr_t)rows;
    call.tables = (const int64_t *)(uintptr_t)tables;
    call.tokens = tokens, call.heads = heads, call.groups = groups;
    call.table_len = table_len, call.block_len = block_len;
    call.query_token = query_token, call.query_head = query_head, call.kv_block = kv_block, call.kv_head = kv_head;
    call.window = window;
    int64_t longest = 0;
    for (int64_t token = 0; token < tokens; token++)
        if (call.positions[token] >= longest) longest = call.positions[token] + 1;
    float *weights = malloc(sizeof(float) * groups * longest);
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
