// What the host brings a GPU comes after all that is queued there, however late the GPU is; what goes waits for nobody.
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
  // What is queued from now on is late.
  void be_late() {
    const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(200)); };
    ASSERT_EQ(cudaLaunchHostFunc(cuda::native(gpu()), sleep, nullptr), cudaSuccess);
  }
};

TEST_F(OrderOnGpu, AStepsValuesComeAfterTheirZeros) {
  be_late();
  StepState step(gpu());
  step.set({1e-3}, 7, 5);
  const std::vector<double> found = testing::values(to_host(step.tensor()));
  EXPECT_EQ(found[kernels::step_value::learning_rate], 1e-3);
  EXPECT_EQ(found[kernels::step_value::iteration], 7);
  EXPECT_EQ(found[kernels::step_value::update], 5);
  EXPECT_EQ(step.learning_rate(), 1e-3);
}

TEST_F(OrderOnGpu, InitialWeightsComeAfterWhatTheirMemoryHeld) {
  constexpr int64_t kElements = 3 << 20;
  ParameterSpec spec;
  spec.name = "ones";
  spec.shape = {kElements};
  spec.init.kind = Initialization::Kind::ones;
  be_late();
  gpu().zeros({kElements}, DType::f32, MemoryTag::weights);  // given back while it is still to be written
  const Parameter ones(gpu(), spec, spec.whole(), 1);
  EXPECT_EQ(testing::values(to_host(ones.value())), std::vector<double>(kElements, 1.0));
}

// A rank that fails gives back its side stream while the device waits for ranks that will never come: it is stopped
// after that, with its groups.
TEST_F(OrderOnGpu, AStreamThatMovedNothingToTheHostGoesWithoutWaitingForTheDevice) {
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
