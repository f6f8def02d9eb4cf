// NCCL, loaded when it is first needed, and a rank's communicator.
//
// NVLink multicast stays off unless NCCL_NVLS_ENABLE asks for it: a program that dies while it uses it can leave a host
// without its GPUs.
#pragma once

#include <nccl.h>

#include <string>

namespace witan::cuda {

// The functions of the library that are used.
struct Nccl {
  Nccl();
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRank) init_rank;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclReduce) reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  std::string path;  // where it was found
  int version = 0;   // 22809 is 2.28.9
};
// Throws DeviceError when it cannot be loaded or is too old.
const Nccl& nccl_calls();

}  // namespace witan::cuda
