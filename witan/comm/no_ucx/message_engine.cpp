#include "witan/comm/processes/message_engine.h"

#include "witan/base/error.h"

namespace witan {

const std::string& why_no_ucx() {
  static const std::string why = "this program was built without UCX (Debian package libucx-dev)";
  return why;
}

const std::string& ucx_version() {
  static const std::string none;
  return none;
}

std::unique_ptr<MessageEngine> make_ucx_engine(int, int) {
  throw CommError(why_no_ucx());
}

}  // namespace witan
