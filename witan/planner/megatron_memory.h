// The memory that Megatron-LM's users know from its log, beside what Witan plans.
#pragma once

#include <string>

#include "witan/train/run/config.h"

namespace witan {

// Weights, gradients and optimizer state of one rank by Megatron-LM's formula (model/counts.h), as lines for
// people: over all parameters, as it prints them, and with experts divided over their ranks; with its distributed
// optimizer and without. Nothing where ranks divide the model otherwise. The config must be resolved.
std::string format_megatron_memory(const RunConfig& config);

}  // namespace witan
