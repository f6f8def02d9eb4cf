#include "witan/kernels/objective/objective.h"

#include "support/cuda_rank.h"
#include "support/objective_case.h"

namespace witan {
namespace {

using testing::ObjectiveCase;
using testing::values;

class ObjectiveOnGpu : public testing::CudaTest {
 protected:
  // ObjectiveCase::run() makes its tensors here, on the GPU.
  struct Place {
    ObjectiveOnGpu& test;
    Tensor poisoned(const Shape& shape, DType dtype) { return test.poisoned(shape, dtype); }
  };
  std::map<std::string, Tensor> on_gpu(ObjectiveCase one) {
    for (Tensor* input :
         {&one.losses, &one.slopes, &one.others, &one.rollout, &one.advantages, &one.mask, &one.ids, &one.number})
      *input = to_gpu(*input);
    Place place{*this};
    return one.run(gpu(), place);
  }
};

TEST_F(ObjectiveOnGpu, AgreesWithTheCpu) {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const int64_t tokens : {0, 1, 24, 3000, 48000}) {
      const ObjectiveCase one(host, dtype, tokens);
      const auto expected = one.run(host.stream, host);
      const auto found = on_gpu(one);
      for (const auto& [name, tensor] : expected)
        EXPECT_TRUE(agree(found.at(name), tensor, tolerance(dtype), tolerance(dtype)))
            << name << ", " << tokens << " tokens, " << dtype;
    }
}

TEST_F(ObjectiveOnGpu, RepeatsItsBits) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const ObjectiveCase one(host, dtype, 48000);
    const auto first = on_gpu(one), second = on_gpu(one);
    for (const auto& [name, tensor] : first)
      EXPECT_EQ(values(to_host(second.at(name))), values(to_host(tensor))) << name;
  }
}

}  // namespace
}  // namespace witan
