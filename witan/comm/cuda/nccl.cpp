#include "witan/comm/cuda/nccl.h"

#include <cstdlib>

#include "witan/base/error.h"
#include "witan/tensor/cuda/library.h"

namespace witan::cuda {

Nccl::Nccl() {
  constexpr int kOldest = 21800;
  ::setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  const Library& library = nccl();
  const auto find = [&]<class Function>(Function*& function, const char* name) {
    function = library.symbol<Function>(name);
  };
  find(get_version, "ncclGetVersion");
  find(get_unique_id, "ncclGetUniqueId");
  find(init_rank, "ncclCommInitRank");
  find(destroy, "ncclCommDestroy");
  find(abort, "ncclCommAbort");
  find(async_error, "ncclCommGetAsyncError");
  find(error_string, "ncclGetErrorString");
  find(last_error, "ncclGetLastError");
  find(group_start, "ncclGroupStart");
  find(group_end, "ncclGroupEnd");
  find(all_reduce, "ncclAllReduce");
  find(reduce_scatter, "ncclReduceScatter");
  find(reduce, "ncclReduce");
  find(all_gather, "ncclAllGather");
  find(broadcast, "ncclBroadcast");
  find(send, "ncclSend");
  find(recv, "ncclRecv");
  path = library.path();
  require<DeviceError>(get_version(&version) == ncclSuccess && version >= kOldest, "NCCL at ", path, " is version ",
                       version, "; ", kOldest, " (2.18) or newer is needed");
}

const Nccl& nccl_calls() {
  static const Nccl loaded;
  return loaded;
}

}  // namespace witan::cuda
