#include "witan/tokenizer/chat/text_template.h"

#include <utility>

#include "witan/tokenizer/chat/parser.h"
#include "witan/tokenizer/chat/rendering.h"

namespace witan {
namespace {

// What a template may do, and what it may do for every unit of weight of the fields (eight bytes of text or a value).
constexpr uint64_t kTemplateWork = uint64_t{1} << 24, kTemplateWorkPerUnit = 2048;

}  // namespace

struct TextTemplate::Program {
  std::string name;
  jinja::Parsed parsed;
};

TextTemplate::TextTemplate(std::string source, std::string name) {
  const jinja::Whitespace as_it_stands{false, false, true};
  jinja::Parsed parsed = jinja::parse(source, name, as_it_stands);
  program_ = std::make_shared<const Program>(Program{std::move(name), std::move(parsed)});
}

std::string TextTemplate::render(const jinja::Entries& fields) const {
  uint64_t weight = 0;
  for (const auto& [name, value] : fields) weight += weight_of(value);
  jinja::Rendering rendering(program_->name, kTemplateWork + kTemplateWorkPerUnit * weight, std::nullopt,
                             jinja::Rendering::Missing::is_an_error);
  for (const auto& [name, value] : fields) rendering.define(str(name), value);
  return rendering.run(program_->parsed.block).text;
}

}  // namespace witan
