// Escapes text for HTML.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace witan {

// Text for element content and quoted attributes. Invalid UTF-8 becomes U+FFFD, control characters but tab and line
// feed are dropped.
std::string escape_html(std::string_view text);

// JSON for the inside of a <script> element: no character in it can end the element.
std::string script_json(const nlohmann::ordered_json& json);

// The template with every {{name}} replaced. Values are not expanded. Throws std::logic_error for an unknown name.
std::string fill(std::string_view html, const std::vector<std::pair<std::string_view, std::string_view>>& values);

}  // namespace witan
