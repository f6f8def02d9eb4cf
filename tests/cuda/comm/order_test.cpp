// Copies from the host to a GPU come after all work queued there, however late the GPU is; copies to the host wait for
// no other work.
#include <atomic>
#include <chrono>
#include <thread>

#include "support/comes_true.h"
#include "support/cuda_rank.h"
#include "witan/nn/parameter.h"
#include "witan/optim/step_state.h"

namespace witan {
namespace {

class OrderOnGpu : public testing::CudaTest {
 protected:
  // Delays work that is queued after this.
  void be_late() {
    const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(200)); };
    ASSERT_EQ(cudaLaunchHostFunc(cuda::native(gpu()), sleep, nullptr), cudaSuccess);
  }
};

TEST_F(OrderOnGpu, StepValuesAreWrittenAfterTheirZeros) {
  be_late();
  StepState step(gpu());
  step.set({1e-3}, 7, 5);
  const std::vector<double> found = testing::values(to_host(step.tensor()));
  EXPECT_EQ(found[kernels::step_value::learning_rate], 1e-3);
  EXPECT_EQ(found[kernels::step_value::iteration], 7);
  EXPECT_EQ(found[kernels::step_value::update], 5);
  EXPECT_EQ(step.learning_rate(), 1e-3);
}

TEST_F(OrderOnGpu, InitialWeightsAreWrittenAfterEarlierUsesOfTheirMemory) {
  constexpr int64_t kElements = 3 << 20;
  ParameterSpec spec;
  spec.name = "ones";
  spec.shape = {kElements};
  spec.init.kind = Initialization::Kind::ones;
  be_late();
  gpu().zeros({kElements}, DType::f32, MemoryTag::weights);  // freed while it is still to be written
  const Parameter ones(gpu(), spec, spec.whole(), 1);
  EXPECT_EQ(testing::values(to_host(ones.value())), std::vector<double>(kElements, 1.0));
}

// A failing rank destroys its side stream while the device waits for ranks that never come. The device is stopped only
// afterwards, with the rank's groups.
TEST_F(OrderOnGpu, StreamsWithoutCopiesToTheHostAreDestroyedWithoutWaiting) {
  auto beside = std::make_unique<Stream>(gpu().device(), gpu().shared_arena(), host.pool, 1 << 20);
  beside->zero(beside->empty({16}, DType::f32));
  beside->wait();
  std::atomic<bool> released = false;
  const auto hold = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
  ASSERT_EQ(cudaLaunchHostFunc(cuda::native(gpu()), hold, &released), cudaSuccess);
  std::atomic<bool> gone = false;
  std::jthread timer([&] {
    EXPECT_TRUE(test::comes_true([&] { return gone.load(); }, 5)) << "it waits for the device";
    released = true;
    released.notify_all();
  });
  beside.reset();
  gone = true;
  timer.join();
  gpu().wait();
}

}  // namespace
}  // namespace witan
