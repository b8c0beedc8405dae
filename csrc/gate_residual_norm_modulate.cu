// h = residual + gate * branch; y = norm(h) * (1 + scale) + shift.
#include "instances.cuh"

REEL_FAMILY(gate_residual_norm_modulate, true)
