#include <torch/csrc/cuda/lms/codec/kind.h>

#include <cstring>

namespace torch::cuda::lms::codec {

namespace {

struct Named {
  const char* scalar_type;
  Kind kind;
};

// Complex numbers are pairs of floats. Double has no kind, because its exponent is a sixth of it.
constexpr Named kScalarTypes[] = {
    {"BFloat16", Kind::BFloat16},
    {"Half", Kind::Float16},
    {"ComplexHalf", Kind::Float16},
    {"Float", Kind::Float32},
    {"ComplexFloat", Kind::Float32},
    {"Float8_e4m3fn", Kind::Float8E4},
    {"Float8_e4m3fnuz", Kind::Float8E4},
    {"Float8_e5m2", Kind::Float8E5},
    {"Float8_e5m2fnuz", Kind::Float8E5},
    {"Long", Kind::Int64},
    {"UInt64", Kind::Int64},
    {"Int", Kind::Int32},
    {"UInt32", Kind::Int32},
    {"QInt32", Kind::Int32},
    {"Short", Kind::Int16},
    {"UInt16", Kind::Int16},
    {"Bool", Kind::Byte},
    {"Byte", Kind::Byte},
    {"Char", Kind::Byte},
    {"QInt8", Kind::Byte},
    {"QUInt8", Kind::Byte},
};

constexpr const char* kNames[kKinds] = {
    "none",
    "bfloat16",
    "float16",
    "float32",
    "float8_e4",
    "float8_e5",
    "int64",
    "int32",
    "int16",
    "byte"};

} // namespace

Kind kind_of(const char* scalar_type) {
  for (const Named& named : kScalarTypes) {
    if (std::strcmp(named.scalar_type, scalar_type) == 0) {
      return named.kind;
    }
  }
  return Kind::None;
}

const char* name(Kind kind) {
  return kNames[static_cast<int>(kind)];
}

} // namespace torch::cuda::lms::codec
