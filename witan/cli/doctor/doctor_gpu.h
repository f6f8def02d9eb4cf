// witan doctor --gpu: lists and measures the GPUs of this machine, and what is missing to use them.
#pragma once

#include "witan/cli/command.h"

namespace witan::cli {

// Prints a page, or JSON. Returns ExitCode::device if no GPU is usable: the page shows the reason.
ExitCode doctor_gpu(const Context& context, bool json);

}  // namespace witan::cli
