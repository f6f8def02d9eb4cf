#include "witan/tensor/host.h"

#include <cassert>
#include <cstring>

#include "witan/tensor/cuda.h"

namespace witan {

void copy_from_host(const Tensor& to, int64_t offset, const void* from, int64_t bytes) {
  assert(to.contiguous() && offset + bytes <= to.bytes());
  if (to.is_meta() || bytes == 0) return;
  if (to.device().kind == Device::Kind::cuda)
    cuda::copy_in(to.device().index, to.raw() + offset, from, bytes);
  else
    std::memcpy(to.raw() + offset, from, static_cast<size_t>(bytes));
}

void copy_to_host(void* to, const Tensor& from, int64_t offset, int64_t bytes) {
  assert(from.contiguous() && offset + bytes <= from.bytes());
  if (from.is_meta() || bytes == 0) return;
  if (from.device().kind == Device::Kind::cuda)
    cuda::copy_out(from.device().index, to, from.raw() + offset, bytes);
  else
    std::memcpy(to, from.raw() + offset, static_cast<size_t>(bytes));
}

}  // namespace witan
