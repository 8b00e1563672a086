// All of the part `model`: GGUF files, where their experts lie, slices of them, and the digests that name them.
#pragma once

#include "model/expert_map.hpp"
#include "model/gguf_model.hpp"
#include "model/manifest.hpp"
#include "model/selection.hpp"
#include "model/slice.hpp"
