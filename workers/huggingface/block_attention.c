/* Attention of tokens over cached keys and values, in one pass over each; those of a sequence lie in blocks.
 *
 * Tokens whose sequences begin in the same blocks read these together (as Hydragen and cascade attention do).
 * Each token has its own length, so nothing is read that is not seen. Heads that share keys and values are computed
 * together, so that these are read once. float32. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_LINE 16 /* floats */
#define MOST_TOGETHER 16 /* tokens; the weights of as many should stay in the cache */

typedef struct {
    const float *queries; /* (tokens, key-value heads, groups, head size), by the strides */
    const float *keys;    /* (blocks, key-value heads, places, head size) */
    const float *values;
    float *output;            /* (tokens, key-value heads, groups, head size), contiguous */
    const int64_t *positions; /* of each token; it sees all up to this one */
    const int64_t *rows;      /* of each token: which table it reads through */
    const int64_t *tables;    /* (rows, blocks of the longest) */
    const int64_t *shared;    /* of each token: places that it and the next token see in the same blocks; whole blocks */
    int64_t tokens, heads, groups, table_len, block_len, longest;
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

/* Has the processor bring a place's keys or values: blocks lie apart, where it does not look ahead by itself. */
static inline __attribute__((always_inline)) void fetch(const float *place, const int64_t size) {
    for (int64_t i = 0; i < size; i += CACHE_LINE) __builtin_prefetch(place + i);
}

/* The scores of one token's heads at the places from `place` to `stop`. */
static inline __attribute__((always_inline)) void score(
    const Call *call, const int64_t token, const int64_t head, int64_t place, const int64_t stop, float *weights,
    const int64_t size) {
    const int64_t groups = call->groups, block_len = call->block_len;
    const int64_t *table = call->tables + call->rows[token] * call->table_len;
    const float *queries = call->queries + token * call->query_token + head * groups * call->query_head;
    while (place < stop) {
        const int64_t block = place / block_len, first = block * block_len;
        const int64_t end = first + block_len < stop ? first + block_len : stop;
        const float *keys = call->keys + table[block] * call->kv_block + head * call->kv_head;
        const float *next = end < stop ? call->keys + table[block + 1] * call->kv_block + head * call->kv_head : keys;
        for (; place < end; place++) {
            const float *key = keys + (place - first) * size;
            fetch(next + (place - first) * size, size);
            for (int64_t group = 0; group < groups; group++) {
                const float *query = queries + group * call->query_head;
                float sum = 0.0f;
                for (int64_t i = 0; i < size; i++) sum += query[i] * key[i];
                weights[group * call->longest + place] = sum * call->scale;
            }
        }
    }
}

/* Adds the weighted values of one token's heads at the places from `place` to `stop`. */
static inline __attribute__((always_inline)) void add_values(
    const Call *call, const int64_t token, const int64_t head, int64_t place, const int64_t stop, const float *weights,
    const int64_t size) {
    const int64_t groups = call->groups, block_len = call->block_len;
    const int64_t *table = call->tables + call->rows[token] * call->table_len;
    float *output = call->output + (token * call->heads + head) * groups * size;
    while (place < stop) {
        const int64_t block = place / block_len, first = block * block_len;
        const int64_t end = first + block_len < stop ? first + block_len : stop;
        const float *values = call->values + table[block] * call->kv_block + head * call->kv_head;
        const float *next = end < stop ? call->values + table[block + 1] * call->kv_block + head * call->kv_head : values;
        for (; place < end; place++) {
            const float *value = values + (place - first) * size;
            fetch(next + (place - first) * size, size);
            for (int64_t group = 0; group < groups; group++) {
                const float weight = weights[group * call->longest + place];
                for (int64_t i = 0; i < size; i++) output[group * size + i] += weight * value[i];
            }
        }
    }
}

/* Turns the scores of one token's heads into weights, and clears what these will be summed up in. */
static inline __attribute__((always_inline)) void weigh(
    const Call *call, const int64_t token, const int64_t head, const int64_t start, const int64_t stop, float *weights,
    const int64_t size) {
    float *output = call->output + (token * call->heads + head) * call->groups * size;
    for (int64_t group = 0; group < call->groups; group++) {
        float *weight = weights + group * call->longest;
        float highest = -FLT_MAX, sum = 0.0f;
        for (int64_t place = start; place < stop; place++) highest = weight[place] > highest ? weight[place] : highest;
        for (int64_t place = start; place < stop; place++) weight[place] = exponential(weight[place] - highest);
        for (int64_t place = start; place < stop; place++) sum += weight[place];
        for (int64_t place = start; place < stop; place++) weight[place] *= 1.0f / sum;
        for (int64_t i = 0; i < size; i++) output[group * size + i] = 0.0f;
    }
}

/* A stretch of tokens that share their first places: each block of these is read once for all of them, while it is in
 * the cache. Every sum has the order that it has for a token alone, so that nothing of the result depends on who shares. */
static inline __attribute__((always_inline)) void attend_stretch(
    const Call *call, const int64_t first, const int64_t last, const int64_t shared, float *weights, const int64_t size) {
    const int64_t own = call->groups * call->longest, block_len = call->block_len;
    for (int64_t head = 0; head < call->heads; head++) {
        for (int64_t place = 0; place < shared; place += block_len)
            for (int64_t token = first; token < last; token++)
                score(call, token, head, place, place + block_len, weights + (token - first) * own, size);
        for (int64_t token = first; token < last; token++) {
            const int64_t stop = call->positions[token] + 1, start = stop > call->window ? stop - call->window : 0;
            float *weight = weights + (token - first) * own;
            score(call, token, head, start > shared ? start : shared, stop, weight, size);
            weigh(call, token, head, start, stop, weight, size);
        }
        for (int64_t place = 0; place < shared; place += block_len)
            for (int64_t token = first; token < last; token++)
                add_values(call, token, head, place, place + block_len, weights + (token - first) * own, size);
        for (int64_t token = first; token < last; token++) {
            const int64_t stop = call->positions[token] + 1, start = stop > call->window ? stop - call->window : 0;
            add_values(call, token, head, start > shared ? start : shared, stop, weights + (token - first) * own, size);
        }
    }
}

static inline __attribute__((always_inline)) void attend_tokens(const Call *call, float *weights, const int64_t size) {
    for (int64_t first = 0; first < call->tokens;) {
        int64_t last = first + 1, shared = call->shared[first];
        while (last < call->tokens && last - first < MOST_TOGETHER && shared && call->shared[last - 1] >= shared) last++;
        if (last == first + 1) shared = 0;
        attend_stretch(call, first, last, shared, weights, size);
        first = last;
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
    unsigned long long queries, keys, values, output, positions, rows, tables, shared;
    long long tokens, heads, groups, size, table_len, block_len, query_token, query_head, kv_block, kv_head, window;
    if (!PyArg_ParseTuple(
            arguments, "KKKKKKKKLLLLLLLLLLLf:block_attention", &queries, &keys, &values, &output, &positions, &rows,
            &tables, &shared, &tokens, &heads, &groups, &size, &table_len, &block_len, &query_token, &query_head, &kv_block,
            &kv_head, &window, &call.scale))
        return NULL;
    call.queries = (const float *)(uintptr_t)queries;
    call.keys = (const float *)(uintptr_t)keys;
    call.values = (const float *)(uintptr_t)values;
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
