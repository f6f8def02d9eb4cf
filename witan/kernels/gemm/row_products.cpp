#include "witan/kernels/gemm/row_products.h"

namespace witan::kernels {
namespace {

thread_local bool row_products = false;

}  // namespace

RowProducts::RowProducts(bool on) : before_(row_products) {
  row_products = row_products || on;
}

RowProducts::~RowProducts() {
  row_products = before_;
}

bool RowProducts::on() {
  return row_products;
}

}  // namespace witan::kernels
