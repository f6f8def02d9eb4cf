#include "witan/kernels/moe/host_exchange.h"

namespace witan::kernels {

void choose_hosts(Stream& stream, const Tensor& hosts, const Tensor& ids, int64_t experts) {
  WITAN_LAUNCH(stream, choose_hosts, (Cost{0, bytes_of(hosts, ids)}), hosts, ids, experts);
}

void number_on_hosts(Stream& stream, const Tensor& numbers, const Tensor& ids, const Tensor& hosts,
                     const Tensor& source, int64_t experts) {
  WITAN_LAUNCH(stream, number_on_hosts, (Cost{0, bytes_of(numbers, ids, hosts, source)}), numbers, ids, hosts, source,
               experts);
}

}  // namespace witan::kernels
