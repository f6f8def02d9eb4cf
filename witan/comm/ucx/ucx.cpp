#include "witan/comm/ucx/ucx.h"

#include <dlfcn.h>

#include <cstdlib>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr const char* kLibrary = "libucp.so.0";

// Sets variables that UCX's constructors read. UCX must leave signals and stdout to this program, whose links.h reports
// lost ranks.
void set_defaults() {
  ::setenv("UCX_HANDLE_ERRORS", "none", /*overwrite=*/0);
  ::setenv("UCX_DEBUG_SIGNO", "0", /*overwrite=*/0);
  ::setenv("UCX_LOG_FILE", "stderr", /*overwrite=*/0);
  ::setenv("UCX_LOG_LEVEL", "fatal", /*overwrite=*/0);
}

Ucx load() {
  Ucx calls{};
  set_defaults();
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    calls.trouble = cat("UCX cannot be loaded (", ::dlerror(), "); install libucx0");
    return calls;
  }
  const auto find = [&]<class Call>(Call*& call, const char* name) {
    call = reinterpret_cast<Call*>(::dlsym(library, name));
    if (call == nullptr) calls.trouble = cat(kLibrary, " has no ", name, ": it is older than UCX 1.13");
  };
  find(calls.version_string, "ucp_get_version_string");
  find(calls.config_read, "ucp_config_read");
  find(calls.config_modify, "ucp_config_modify");
  find(calls.config_release, "ucp_config_release");
  find(calls.init_version, "ucp_init_version");
  find(calls.cleanup, "ucp_cleanup");
  find(calls.worker_create, "ucp_worker_create");
  find(calls.worker_destroy, "ucp_worker_destroy");
  find(calls.worker_address, "ucp_worker_get_address");
  find(calls.release_address, "ucp_worker_release_address");
  find(calls.progress, "ucp_worker_progress");
  find(calls.worker_descriptor, "ucp_worker_get_efd");
  find(calls.arm, "ucp_worker_arm");
  find(calls.ep_create, "ucp_ep_create");
  find(calls.ep_close, "ucp_ep_close_nbx");
  find(calls.tag_send, "ucp_tag_send_nbx");
  find(calls.tag_recv, "ucp_tag_recv_nbx");
  find(calls.tag_probe, "ucp_tag_probe_nb");
  find(calls.message_recv, "ucp_tag_msg_recv_nbx");
  find(calls.cancel, "ucp_request_cancel");
  find(calls.request_status, "ucp_request_check_status");
  find(calls.free, "ucp_request_free");
  find(calls.status_string, "ucs_status_string");
  if (calls.trouble.empty()) calls.version = calls.version_string();
  return calls;
}

}  // namespace

const Ucx& ucx() {
  static const Ucx loaded = load();
  return loaded;
}

}  // namespace witan
