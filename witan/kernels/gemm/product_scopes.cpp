#include "witan/kernels/gemm/product_scopes.h"

namespace witan::kernels {
namespace {

thread_local bool few_rows = false;

thread_local bool row_products = false;

}  // namespace

FewRows::FewRows(bool on) : before_(few_rows) {
  few_rows = few_rows || on;
}

FewRows::~FewRows() {
  few_rows = before_;
}

bool FewRows::on() {
  return few_rows;
}

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
