#include "witan/kernels/common/early_launches.h"

#include <utility>

namespace witan::kernels {
namespace {

thread_local bool early_launches = false;

}  // namespace

EarlyLaunches::EarlyLaunches() : before_(std::exchange(early_launches, true)) {}

EarlyLaunches::~EarlyLaunches() {
  early_launches = before_;
}

bool EarlyLaunches::on() {
  return early_launches;
}

}  // namespace witan::kernels
