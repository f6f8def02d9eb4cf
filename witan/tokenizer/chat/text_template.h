// Templates of the fields of a row, as lm-evaluation-harness has them in its tasks: the part of Jinja that chat
// templates are written in (chat_template.h), with white space as it stands, and undefined names an error where they
// are printed (lm_eval/utils.py: Environment(undefined=StrictUndefined, keep_trailing_newline=True)).
#pragma once

#include <memory>
#include <string>

#include "witan/tokenizer/chat/value.h"

namespace witan {

// Immutable and cheap to copy; may be used from several threads.
class TextTemplate {
 public:
  // Throws DataError("NAME:LINE: ...") for text that is not a template and for what is beyond the supported part.
  TextTemplate(std::string source, std::string name);

  // Throws DataError naming the template and its line for what goes wrong.
  std::string render(const jinja::Entries& fields) const;

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
};

}  // namespace witan
