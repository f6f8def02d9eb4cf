#include "witan/base/error.h"
#include "witan/comm/cuda.h"
#include "witan/tensor/cuda.h"

namespace witan::cuda {

std::shared_ptr<DeviceWatch> watch(Stream&, HostGroup&) {
  throw DeviceError(why_none());
}
PeerIslands find_peers(HostGroup&, int) {
  throw DeviceError(why_none());
}
std::unique_ptr<Group> make_group(std::unique_ptr<HostGroup>, Stream&, std::shared_ptr<DeviceWatch>,
                                  const GroupOptions&) {
  throw DeviceError(why_none());
}

}  // namespace witan::cuda
