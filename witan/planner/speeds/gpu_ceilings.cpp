#include "witan/planner/speeds/gpu_ceilings.h"

#include "witan/base/threads/threads.h"
#include "witan/kernels/gemm/ceiling.h"
#include "witan/tensor/arena.h"

namespace witan {

Ceilings measure_gpu_ceilings(const Load& load) {
  Ceilings ceilings;
  ceilings.load = load;
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{3} << 30), pool);
  const kernels::DeviceCeilings device = kernels::measure_device(stream, dtype_from_name(load.dtype));
  ceilings.fma_flops = load.ranks * device.flops;
  ceilings.f32_flops = load.ranks * kernels::measure_device(stream, DType::f32).flops;
  ceilings.copy_bytes = device.bytes;
  return ceilings;
}

}  // namespace witan
