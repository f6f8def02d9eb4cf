// witan doctor --gpu: what the GPUs of this machine are and reach, and what is missing to use them.
#pragma once

#include "witan/cli/command.h"

namespace witan::cli {

// Prints a page, or JSON. Returns `device` where no GPU can be used: the reason is on the page.
ExitCode doctor_gpu(const Context& context, bool json);

}  // namespace witan::cli
