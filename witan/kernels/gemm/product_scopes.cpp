#include "witan/kernels/gemm/product_scopes.h"

#include "witan/kernels/gemm/row_products.h"

namespace witan::kernels {
namespace {

thread_local bool few_rows = false;

}  // namespace

FewRows::FewRows(bool on) : before_(few_rows) {
  few_rows = few_rows || on;
}

FewRows::~FewRows() {
  few_rows = before_;
}

bool FewRows::on() {
  return few_rows && !RowProducts::on();
}

}  // namespace witan::kernels
