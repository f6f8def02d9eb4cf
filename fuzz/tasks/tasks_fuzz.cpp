// A task is accepted, or refused with a message; the output of its templates is read as a list, or refused.
#include "fuzz/support.h"
#include "witan/tasks/python.h"
#include "witan/tasks/task_config.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  const std::string text(fuzz::text_of(data, size));
  fuzz::expect_own_errors([&] { parse_task(*parse_yaml(text, "task.yaml").entries(), "task.yaml"); });
  fuzz::expect_own_errors([&] {
    const std::string printed = repr(parse_python_literal(text, "doc_to_choice"));
    assert(repr(parse_python_literal(printed, "doc_to_choice")) == printed);
  });
  return 0;
}
