/*
 * Activations and their derivatives, in float32.
 *
 * The tanh form of gelu is written with the logistic function s(z) = 1/(1 + e^-z), since
 * (1 + tanh u)/2 = s(2u):
 *
 *   u = √(2/π)·(x + 0.044715·x³)
 *   y = x·s(2u)
 *   y' = s + x·s·(1 - s)·2u'
 */
#pragma once

#include "kernels/cuda/own/vector.cuh"
#include "kernels/op.h"

#define GELU_ROOT  0.7978845608028654f /* √(2/π) */
#define GELU_CUBIC 0.044715f
#define SQRT_HALF  0.7071067811865476f
#define NORMAL_0   0.3989422804014327f /* 1/√(2π) */

/* 1/(1 + e^-z) */
DEVICE_INLINE float logistic(float z)
{
    return __fdividef(1.0f, 1.0f + exp_approximate(-z));
}

template <int KIND> DEVICE_INLINE float activate(float x)
{
    if constexpr (KIND == ACTIVATION_RELU) {
        return x <= 0.0f ? 0.0f : x;
    } else if constexpr (KIND == ACTIVATION_GELU_TANH) {
        return x * logistic(2.0f * GELU_ROOT * (x + GELU_CUBIC * x * x * x));
    } else if constexpr (KIND == ACTIVATION_GELU_ERF) {
        return 0.5f * x * (1.0f + erff(x * SQRT_HALF));
    } else {
        static_assert(KIND == ACTIVATION_NONE, "an activation without a value");
        return x;
    }
}

/* dy·activation'(x); for relu, x may be its output. */
template <int KIND> DEVICE_INLINE float activate_gradient(float dy, float x)
{
    if constexpr (KIND == ACTIVATION_RELU) {
        return x <= 0.0f ? 0.0f : dy;
    } else if constexpr (KIND == ACTIVATION_GELU_TANH) {
        const float s = logistic(2.0f * GELU_ROOT * (x + GELU_CUBIC * x * x * x));
        const float slope = 2.0f * GELU_ROOT * (1.0f + 3.0f * GELU_CUBIC * x * x);
        return dy * (s + x * s * (1.0f - s) * slope);
    } else if constexpr (KIND == ACTIVATION_GELU_ERF) {
        const float normal = 0.5f * (1.0f + erff(x * SQRT_HALF));
        return dy * (normal + x * NORMAL_0 * exp_approximate(-0.5f * x * x));
    } else {
        static_assert(KIND == ACTIVATION_NONE, "an activation without a derivative");
        return dy;
    }
}

/* The host's side: an activation as a constant. */
template <int KIND> struct activation_is {
    static constexpr int value = KIND;
};

template <typename F>
static inline enum status with_activation(enum activation activation, const F &f)
{
    switch (activation) {
    case ACTIVATION_NONE:
        return f(activation_is<ACTIVATION_NONE>());
    case ACTIVATION_RELU:
        return f(activation_is<ACTIVATION_RELU>());
    case ACTIVATION_GELU_TANH:
        return f(activation_is<ACTIVATION_GELU_TANH>());
    case ACTIVATION_GELU_ERF:
        return f(activation_is<ACTIVATION_GELU_ERF>());
    }
    return ST_INVALID;
}
