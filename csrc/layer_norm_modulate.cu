// y = norm(x) * (1 + scale) + shift, LN or RMS.
#include "instances.cuh"

REEL_FAMILY(layer_norm_modulate, false)
