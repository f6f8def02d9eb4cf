#include "witan/tensor/dtype.h"

#include <gtest/gtest.h>

#include "support/message_of.h"

namespace witan {
namespace {

using test::message_of;

TEST(DType, NamesRoundTrip) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64})
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
  EXPECT_EQ(dtype_from_name("fp32"), DType::f32);
  EXPECT_EQ(dtype_from_name("bf16"), DType::bf16);
  EXPECT_EQ(dtype_from_name("fp16"), DType::f16);
  EXPECT_EQ(dtype_from_name("fp64"), DType::f64);
  EXPECT_EQ(message_of<ConfigError>([] { dtype_from_name("float"); }),
            "\"float\" is not a dtype: use float32, bfloat16, float16 or float64");
  EXPECT_EQ(cat(DType::bf16), "bfloat16");
}

TEST(DType, HasSizesAndAccumulators) {
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::f16), 2);
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::i32), 4);
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_EQ(size_of(DType::i64), 8);
  EXPECT_EQ(accumulator(DType::bf16), DType::f32);
  EXPECT_EQ(accumulator(DType::f16), DType::f32);
  EXPECT_EQ(accumulator(DType::f32), DType::f32);
  EXPECT_EQ(accumulator(DType::f64), DType::f64);
  EXPECT_TRUE(is_floating(DType::f64));
  EXPECT_FALSE(is_floating(DType::i32));
}

TEST(DType, DispatchSelectsTheType) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    EXPECT_EQ((dispatch_floating(dtype, []<class T>() { return dtype_of<T>(); })), dtype);
  EXPECT_EQ(message_of<ShapeError>([] { dispatch_floating(DType::i64, []<class T>() {}); }),
            "a floating dtype is needed, got int64");
}

}  // namespace
}  // namespace witan
