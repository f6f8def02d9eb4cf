#include "witan/base/error.h"
#include "witan/comm/cuda.h"
#include "witan/tensor/cuda.h"

namespace witan::cuda {

std::shared_ptr<DeviceWatch> watch(Stream&, const HostGroup&) {
  throw DeviceError(why_none());
}
std::unique_ptr<Group> make_group(std::unique_ptr<HostGroup>, Stream&, std::shared_ptr<DeviceWatch>,
                                  const GroupOptions&) {
  throw DeviceError(why_none());
}

}  // namespace witan::cuda
