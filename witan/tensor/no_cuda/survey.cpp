#include "witan/base/error.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/cuda_survey.h"

namespace witan::cuda {

Software software() {
  return {};
}
std::vector<LibraryState> libraries() {
  return {};
}
Link measure_link(int, int) {
  throw DeviceError(why_none());
}

}  // namespace witan::cuda
