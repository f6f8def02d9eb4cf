// Checks that nothing large is allocated outside the arenas while a run steps, evaluates or saves. This program's C
// allocator is interposed: every call above 1 MiB between arm() and disarm() is a finding.
#include <execinfo.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "support/temp_folder.h"
#include "train/step/run_support.h"
#include "witan/checkpoint/store.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WITAN_INTERPOSED 0  // the sanitizers interpose their own allocators
#else
#define WITAN_INTERPOSED 1
#endif

namespace {

constexpr size_t kMost = 1 << 20;

std::atomic<bool> armed{false};
std::atomic<size_t> findings{0}, largest{0};
std::array<void*, 32> culprit;  // stack of the first finding
std::atomic<int> culprit_depth{0};

void note(size_t bytes) {
  if (bytes <= kMost || !armed.load(std::memory_order_relaxed)) return;
  if (findings.fetch_add(1) == 0) culprit_depth = ::backtrace(culprit.data(), static_cast<int>(culprit.size()));
  size_t most = largest.load();
  while (bytes > most && !largest.compare_exchange_weak(most, bytes)) {
  }
}

}  // namespace

#if WITAN_INTERPOSED
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  note(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  note(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* block, size_t bytes) {
  note(bytes);
  return __libc_realloc(block, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  note(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  note(bytes);
  *block = __libc_memalign(alignment, bytes);
  return *block ? 0 : ENOMEM;
}
void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  // Mapping a file is not an allocation: the kernel can take its pages back.
  if ((flags & MAP_ANONYMOUS) != 0) note(bytes);
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
}
#endif

namespace witan {
namespace {

using test::TempFolder;
using testing::random_batch;
using testing::small_config;

// The model is large enough for a copy of its logits, activations, a weight or a gradient to exceed the limit.
RunConfig config_of_weight() {
  RunConfig config = small_config();
  config.model.hidden_size = 128;
  config.model.mlp.ffn_hidden_size = 256;
  config.model.vocab_size = 4096;
  config.data.seq_length = 128;
  config.train.micro_batch_size = 4;
  config.train.global_batch_size = 16;
  config.parallel = {2, 2, 1};
  return config;
}

void expect_no_allocation(const RunConfig& config) {
  const TempFolder folder;
  const int ranks = static_cast<int>(config.parallel.ranks);
  const Layout layout(config.parallel, ranks, config.model.moe.num_experts);
  const int64_t arena = make_plan(resolve(config, {})).arena_bytes();
  ThreadWorld world(ranks);
  findings = 0;
  largest = 0;
  world.run([&](int rank) {
    const Groups groups = make_groups(world, layout, rank);
    ThreadPool pool(static_cast<int>(config.parallel.threads));
    Stream stream({Device::Kind::cpu}, Arena::reserve(arena), pool);
    Engine engine(stream, groups, resolve(config, {}));
    std::vector<Batch> batches;
    for (int64_t j = rank; j < config.micro_batches(); j += ranks) batches.push_back(random_batch(config, j));
    groups.world().barrier(stream);
    if (rank == 0) armed = true;
    for (int64_t step = 1; step <= 2; ++step) engine.step(batches, step, step - 1);
    engine.evaluate({batches.front()});
    CheckpointContent content;
    content.step = 2;
    content.tensors = engine.state();
    save_checkpoint(groups.world(), stream, folder.path(), content);
    groups.world().barrier(stream);
    if (rank == 0) armed = false;
  });
  EXPECT_EQ(findings, 0u) << "largest allocation: " << largest << " bytes";
  if (findings > 0) ::backtrace_symbols_fd(culprit.data(), culprit_depth, STDERR_FILENO);
}

class AllocationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!WITAN_INTERPOSED) GTEST_SKIP() << "the sanitizer has its own allocator";
    std::array<void*, 4> warm_up;
    ::backtrace(warm_up.data(), static_cast<int>(warm_up.size()));  // its first call allocates
  }
};

TEST_F(AllocationTest, InterposerSeesEveryAllocationCall) {
  findings = 0;
  armed = true;
  std::vector<char> vector(kMost + 1);
  auto array = std::make_unique<double[]>(kMost);
  void* aligned = std::aligned_alloc(4096, 2 * kMost);
  armed = false;
  std::free(aligned);
  EXPECT_EQ(findings, 3u);
  EXPECT_EQ(largest, 8 * kMost);
}

TEST_F(AllocationTest, StepsEvaluationsAndSavesAllocateOnlyInTheArena) {
  expect_no_allocation(config_of_weight());
}

TEST_F(AllocationTest, HoldsForModelVariants) {
  const auto varied = [](const char* what, auto change) {
    SCOPED_TRACE(what);
    RunConfig config = config_of_weight();
    change(config);
    expect_no_allocation(config);
  };
  varied("dense, one rank of two threads", [](RunConfig& c) {
    c.model.moe.num_experts = 0;
    c.parallel = {1, 1, 2};
  });
  varied("sequential experts", [](RunConfig& c) { c.model.moe.moe_grouped_gemm = false; });
  varied("bfloat16, full recomputation", [](RunConfig& c) {
    c.model.dtype = "bfloat16";
    c.model.recompute_granularity = "full";
  });
  varied("LayerNorm, GELU, SGD, states checked", [](RunConfig& c) {
    c.model.norm.normalization = "LayerNorm";
    c.model.mlp.swiglu = false;
    c.optimizer.optimizer = "sgd";
    c.train.check_states = true;
  });
}

}  // namespace
}  // namespace witan
