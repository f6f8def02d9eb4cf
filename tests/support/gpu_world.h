// Runs a test's body on N ranks, threads or processes, each with a CPU stream and a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/fresh_processes.h"
#include "support/rank.h"
#include "witan/comm/cuda.h"
#include "witan/comm/cuda/nccl_group.h"
#include "witan/comm/cuda/peer_exchange.h"
#include "witan/tensor/cuda.h"

namespace witan::testing {

// Loading a kernel waits for the GPU, so ranks that share a GPU must not load one while a peer's kernel waits for them.
inline const int kLoadsKernelsAtOnce = ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);

struct GpuRank : Rank {
  GpuRank(World& of, int index, int device)
      : Rank(1, int64_t{1} << 28),
        world(of),
        rank(index),
        gpu({Device::Kind::cuda, device}, Arena::reserve_on_gpu(device, int64_t{1} << 30), pool) {}

  int size() const { return world.size(); }
  // The rank's handle of the group of all ranks.
  std::unique_ptr<HostGroup> everyone(const std::string& axis = "data") {
    std::vector<int> ranks(static_cast<size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return world.group(rank, ranks, axis);
  }
  // Normal values that differ from rank to rank.
  Tensor own_normal(const Shape& shape, DType dtype, const std::string& name) {
    return normal(shape, dtype, name + " of rank " + std::to_string(rank));
  }
  Tensor to_gpu(const Tensor& tensor) {
    Tensor out = gpu.empty(tensor.shape(), tensor.dtype());
    gpu.write(out, tensor.raw());
    return out;
  }
  Tensor to_host(const Tensor& tensor) {
    Tensor out = stream.empty(tensor.shape(), tensor.dtype());
    gpu.read(out.raw(), tensor);
    return out;
  }
  // All bits set: NaN or -1.
  Tensor poisoned_on_gpu(const Shape& shape, DType dtype) {
    Tensor out = gpu.empty(shape, dtype);
    const std::vector<uint8_t> ones(static_cast<size_t>(out.bytes()), 0xff);
    gpu.write(out, ones.data());
    return out;
  }

  World& world;
  const int rank;
  Stream gpu;
};

// Ranks beyond the number of GPUs share them.
inline void on_gpus(World& world, const std::function<void(GpuRank&)>& body) {
  world.run([&](int index) {
    GpuRank rank(world, index, index % cuda::devices());
    body(rank);
  });
}
inline void on_gpus(int ranks, const std::function<void(GpuRank&)>& body) {
  ThreadWorld world(ranks, {.deadline_seconds = 30});
  on_gpus(world, body);
}

// Runs the body on ranks of several processes with `threads` ranks each. Returns how the processes ended, with the
// results of the body on their ranks in order. Each process sees all GPUs, unless `variables` hides some.
struct GpuProcesses {
  int processes = 2, threads = 1;
  double deadline_seconds = 30;
  std::function<std::vector<std::string>(int process)> variables = [](int) { return std::vector<std::string>(); };
};
inline std::vector<Ended> on_gpu_processes(const GpuProcesses& of, const std::function<std::string(GpuRank&)>& body) {
  return in_fresh_processes(
      of.processes,
      [&](int process, int port) {
        ProcessWorld world(launch_of(process, of.processes, port), {60, of.deadline_seconds, of.threads});
        std::vector<std::string> said(static_cast<size_t>(world.size()));
        on_gpus(world, [&](GpuRank& rank) { said[static_cast<size_t>(rank.rank)] = body(rank); });
        return std::accumulate(said.begin(), said.end(), std::string());
      },
      of.variables);
}

// Peer memory of GPUs without NCCL, also for ranks that share a GPU.
class GpuPeerGroup : public Group, public cuda::Watched {
 public:
  GpuPeerGroup(GpuRank& rank, const std::string& axis)
      : Group(rank.size(), rank.rank, axis),
        link_(rank.everyone(axis), rank.gpu),
        watch_(cuda::watch(rank.gpu, link_.group())),
        exchange_(cuda::PeerExchange::make(*this, link_, rank.gpu, *watch_)) {
    watch_->add(*this);
  }
  ~GpuPeerGroup() override {
    watch_->settled();
    watch_->remove(*this);
  }
  PeerMemory* peers() override { return exchange_.get(); }
  cuda::PeerExchange* exchange() { return exchange_.get(); }

  std::string complaint(double) override { return exchange_ ? exchange_->complaint() : std::string(); }
  void stop() noexcept override {
    if (exchange_) exchange_->stop();
  }
  void abort() noexcept override {}

 private:
  void perform(Stream&, const Collective& call) override {
    throw CommError(cat(name_of(call.kind), " is not needed where ranks reach each other's memory"));
  }

  cuda::HostLink link_;
  std::shared_ptr<cuda::DeviceWatch> watch_;
  std::unique_ptr<cuda::PeerExchange> exchange_;
};

// Tests on as many ranks as the parameter says, each with its own GPU, connected by NCCL.
class OverNccl : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (cuda::devices() < GetParam())
      GTEST_SKIP() << GetParam() << " GPUs are needed, " << cuda::devices() << " can be used. " << cuda::why_none();
    try {
      cuda::nccl_calls();
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

}  // namespace witan::testing
