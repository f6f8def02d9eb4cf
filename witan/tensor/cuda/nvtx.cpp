#include <nvtx3/nvToolsExt.h>

#include "witan/tensor/cuda.h"

namespace witan::cuda {

void push_range(const std::string& name) {
  nvtxRangePushA(name.c_str());
}
void pop_range() {
  nvtxRangePop();
}

}  // namespace witan::cuda
