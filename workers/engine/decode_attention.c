/* Attention of one new token a row over that row's cached keys and values, in one pass over each.
 *
 * Rows have their own lengths, so nothing is read that is not seen. Heads that share keys and values are computed
 * together, so that these are read once. float32. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const float *queries; /* (rows, key-value heads, groups, head size), by the strides */
    const float *keys;    /* (rows, key-value heads, positions, head size) */
    const float *values;
    float *output;            /* (rows, key-value heads, groups, head size), contiguous */
    const int64_t *positions; /* of each row's new token; it sees all up to this one */
    int64_t rows, heads, groups;
    int64_t query_row, query_head, kv_row, kv_head; /* strides, in numbers */
    int64_t window;                                 /* positions that are seen at most */
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

static inline __attribute__((always_inline)) void attend_rows(const Call *call, float *weights, const int64_t size) {
    const int64_t groups = call->groups;
    for (int64_t row = 0; row < call->rows; row++) {
        const int64_t stop = call->positions[row] + 1;
        const int64_t start = stop > call->window ? stop - call->window : 0;
        for (int64_t head = 0; head < call->heads; head++) {
            const float *keys = call->keys + row * call->kv_row + head * call->kv_head;
            const float *values = call->values + row * call->kv_row + head * call->kv_head;
            const float *queries = call->queries + row * call->query_row + head * groups * call->query_head;
            float *output = call->output + (row * call->heads + head) * groups * size;
            for (int64_t place = start; place < stop; place++) {
                const float *key = keys + place * size;
                for (int64_t group = 0; group < groups; group++) {
                    const float *query = queries + group * call->query_head;
                    float score = 0.0f;
                    for (int64_t i = 0; i < size; i++) score += query[i] * key[i];
                    weights[group * stop + place] = score * call->scale;
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
            for (int64_t place = start; place < stop; place++) {
                const float *value = values + place * size;
                for (int64_t group = 0; group < groups; group++) {
                    const float weight = weights[group * stop + place];
                    for (int64_t i = 0; i < size; i++) output[group * size + i] += weight * value[i];
                }
            }
        }
    }
}

/* Returns 0, or 1 where there is no memory. */
int decode_attention(const Call *call, int64_t size) {
    int64_t longest = 0;
    for (int64_t row = 0; row < call->rows; row++)
        if (call->positions[row] >= longest) longest = call->positions[row] + 1;
    float *weights = malloc(sizeof(float) * call->groups * longest);
    if (weights == NULL) return 1;
    switch (size) { /* a size that the compiler knows is computed in registers */
        case 16: attend_rows(call, weights, 16); break;
        case 32: attend_rows(call, weights, 32); break;
        case 64: attend_rows(call, weights, 64); break;
        case 128: attend_rows(call, weights, 128); break;
        default: attend_rows(call, weights, size);
    }
    free(weights);
    return 0;
}
