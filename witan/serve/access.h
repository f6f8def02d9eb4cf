// Access control of a server: clients that send its secret or, without one, programs on this machine.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "witan/serve/http_server.h"

namespace witan::serve {

// Compares in a time that does not depend on where the texts differ.
bool same_secret(std::string_view a, std::string_view b);

// A new secret: 128 bits of the system's randomness as 32 hexadecimal digits. Throws IoError if the system has none.
std::string new_secret();

// Why a request must be refused because it comes from a web page of another site; nullopt: it may be this machine's
// own. A server that asks for no key, on a loopback address, is open to every page that a browser on this machine
// shows, unless it checks where requests come from. A Host of another name belongs to a site whose owner resolves it to
// this machine (DNS rebinding); an Origin other than this server's belongs to another site's script. `name`: a further
// name of this server, such as the one it listens at; empty: none.
std::optional<std::string> foreign_request(const HttpRequest& request, const std::string& name = {});

}  // namespace witan::serve
