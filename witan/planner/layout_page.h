// A layout as a page for people: the mesh, the groups of a rank, and how every parameter is held, as a tree of modules.
#pragma once

#include <string>

#include "witan/train/config.h"

namespace witan {

// Of rank 0. Layers that are held alike share their lines. The config must be resolved and valid.
std::string format_layout(const RunConfig& config);

}  // namespace witan
