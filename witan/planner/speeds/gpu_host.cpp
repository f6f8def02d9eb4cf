#include "witan/planner/speeds/gpu_host.h"

namespace witan {

Cluster host_of(const Ceilings& ceilings) {
  Cluster host;
  if (const GpuModel* model = model_of_device(ceilings.load.gpu)) {
    host.gpu = *model;
  } else {
    const GpuModel& like = find_gpu("h100");
    const Ceilings typical = Cluster{like}.ceilings({"bfloat16", 1, 1});
    const double flops = ceilings.fma_flops / ceilings.load.ranks / typical.fma_flops;
    host.gpu = {"",
                flops * like.bf16_flops,
                flops * like.f32_flops,
                like.memory_bytes,
                ceilings.copy_bytes / typical.copy_bytes * like.memory_bytes_s,
                like.link_bytes_s};
  }
  host.gpus_per_host = ceilings.load.ranks;
  host.link_bytes_s = host.gpu.link_bytes_s;
  host.network_bytes_s = host.gpu.link_bytes_s;  // there is no other host
  return host;
}

GpuSpeeds speeds_of(const Ceilings& ceilings) {
  if (ceilings.speeds) return *ceilings.speeds;
  return typical_speeds(host_of(ceilings).gpu, static_cast<int64_t>(size_of(dtype_from_name(ceilings.load.dtype))));
}

}  // namespace witan
