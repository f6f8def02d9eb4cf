// The calls of UCX (openucx.org, API of ucp/api/ucp.h), whose library is loaded on first use: the program starts
// without it, and commands that have no peers do not run its constructors.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

namespace witan {

struct Ucx {
  decltype(&::ucp_get_version_string) version_string;
  decltype(&::ucp_config_read) config_read;
  decltype(&::ucp_config_modify) config_modify;
  decltype(&::ucp_config_release) config_release;
  decltype(&::ucp_init_version) init_version;
  decltype(&::ucp_cleanup) cleanup;
  decltype(&::ucp_worker_create) worker_create;
  decltype(&::ucp_worker_destroy) worker_destroy;
  decltype(&::ucp_worker_get_address) worker_address;
  decltype(&::ucp_worker_release_address) release_address;
  decltype(&::ucp_worker_progress) progress;
  decltype(&::ucp_worker_get_efd) worker_descriptor;
  decltype(&::ucp_worker_arm) arm;
  decltype(&::ucp_ep_create) ep_create;
  decltype(&::ucp_ep_close_nbx) ep_close;
  decltype(&::ucp_tag_send_nbx) tag_send;
  decltype(&::ucp_tag_recv_nbx) tag_recv;
  decltype(&::ucp_tag_probe_nb) tag_probe;
  decltype(&::ucp_tag_msg_recv_nbx) message_recv;
  decltype(&::ucp_request_cancel) cancel;
  decltype(&::ucp_request_check_status) request_status;
  decltype(&::ucp_request_free) free;
  decltype(&::ucs_status_string) status_string;

  std::string trouble;  // why it cannot be used; empty: it can
  std::string version;
};

const Ucx& ucx();

}  // namespace witan
