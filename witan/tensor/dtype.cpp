#include "witan/tensor/dtype.h"

namespace witan {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    case DType::f64:
      return "float64";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::f8:
      return "float8_e4m3";
  }
  return "unknown";
}

DType dtype_from_name(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64})
    if (name == name_of(dtype)) return dtype;
  if (name == "fp32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  if (name == "fp16") return DType::f16;
  if (name == "fp64") return DType::f64;
  throw ConfigError(cat("\"", name, "\" is not a dtype: use float32, bfloat16, float16 or float64"));
}

}  // namespace witan
