// A local server that behaves like the Hugging Face hub of 2026, with failures that a test requests. It serves
// repositories with paged file lists; redirects large files, stored with Xet, to signed URLs on another port, and small
// ones by a relative URL to a cache; and supports renamed repositories, ranges and tokens. Answers can fail, end early,
// never end, or hold wrong bytes.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace witan::test {

inline std::string hex_digest(const EVP_MD* algorithm, const std::string& bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, algorithm, nullptr);
  std::string hex;
  for (unsigned i = 0; i < size; ++i) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", digest[i]);
    hex += digits.data();
  }
  return hex;
}

struct HubRepository {
  std::string kind = "dataset", name;
  std::string commit = "0123456789abcdef0123456789abcdef01234567";
  std::map<std::string, std::string> files;
  nlohmann::json card = nlohmann::json::object();
  std::string token;                                     // required for reading, if not empty
  nlohmann::json more_listed = nlohmann::json::array();  // listed entries that are not files
};

struct HubRequest {
  bool content = false;                        // sent to the server of large files
  std::string path, query;                     // decoded, as received
  std::map<std::string, std::string> headers;  // names in lower case
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

// A failure of an answer.
struct HubFault {
  int status = 0;            // sent instead of the answer
  std::string headers = "";  // additional "Name: value\r\n"
  int64_t cut_after = -1;    // bytes of the body before the connection closes
  int64_t more_bytes = 0;    // bytes added to the body
  bool wrong_byte = false, endless = false, ignores_ranges = false, wrong_range = false;
  double bytes_per_second = 0;
  bool silent = false;  // no answer; the connection stays open
};

class HubServer {
 public:
  HubServer() : hub_(listen()), content_(listen()) {
    hub_port_ = port_of(hub_);
    content_port_ = port_of(content_);
    acceptors_.emplace_back([this] { accept_all(hub_, false); });
    acceptors_.emplace_back([this] { accept_all(content_, true); });
  }
  ~HubServer() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      for (const int socket : open_) ::shutdown(socket, SHUT_RDWR);
    }
    for (const int socket : {hub_, content_}) ::shutdown(socket, SHUT_RDWR);
    for (std::thread& thread : acceptors_) thread.join();
    for (std::thread& thread : sessions_) thread.join();
    for (const int socket : {hub_, content_}) ::close(socket);
  }
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(hub_port_); }
  std::string content_endpoint() const { return "http://127.0.0.1:" + std::to_string(content_port_); }

  void add(const HubRepository& repository) {
    const std::lock_guard lock(mutex_);
    repositories_[repository.kind + "s/" + repository.name] = repository;
  }
  // A former name of a repository of the same kind: requests are redirected by relative URLs.
  void rename(const std::string& kind, const std::string& former, const std::string& name) {
    const std::lock_guard lock(mutex_);
    renamed_[kind + "s/" + former] = kind + "s/" + name;
  }
  // Called with each request, on any thread; returns the failure of its answer.
  void set_fault(std::function<std::optional<HubFault>(const HubRequest&)> fault) {
    const std::lock_guard lock(mutex_);
    fault_ = std::move(fault);
  }
  void set_page_size(size_t files) { page_size_ = files; }
  void set_large(size_t bytes) { large_ = bytes; }  // files of at least this size are on the other server

  std::vector<HubRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  // Number of requests for content of this path, or of all files.
  int64_t content_requests(const std::string& path = "") const {
    int64_t count = 0;
    for (const HubRequest& request : requests())
      if ((request.content || request.path.find("/resolve/") != std::string::npos) && request.path.ends_with(path))
        ++count;
    return count;
  }
  void forget_requests() {
    const std::lock_guard lock(mutex_);
    requests_.clear();
  }

 private:
  struct Answer {
    int status = 200;
    std::string headers, body;
    bool file = false;  // supports ranges
  };

  static int listen() {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(socket, reinterpret_cast<const sockaddr*>(&place), sizeof place) != 0 || ::listen(socket, 64) != 0)
      throw std::runtime_error("cannot listen");
    return socket;
  }
  static int port_of(int socket) {
    sockaddr_in place{};
    socklen_t size = sizeof place;
    ::getsockname(socket, reinterpret_cast<sockaddr*>(&place), &size);
    return ntohs(place.sin_port);
  }

  void accept_all(int listener, bool content) {
    while (true) {
      const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      const std::lock_guard lock(mutex_);
      if (socket < 0 || stopping_) {
        if (socket >= 0) ::close(socket);
        return;
      }
      const int now = 1;  // without it, head and body could be sent together
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &now, sizeof now);
      open_.insert(socket);
      sessions_.emplace_back([this, socket, content] { serve(socket, content); });
    }
  }

  void serve(int socket, bool content) {
    std::string received;
    while (const auto request = receive(socket, received, content))
      if (!respond(socket, *request)) break;
    const std::lock_guard lock(mutex_);
    open_.erase(socket);
    ::close(socket);
  }

  static std::string lower(std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
  }
  static std::string encoded(const std::string& path) {
    std::string out;
    for (const unsigned char byte : path)
      if (std::isalnum(byte) != 0 || byte == '/' || byte == '.') {
        out += static_cast<char>(byte);
      } else {
        std::array<char, 4> text{};
        std::snprintf(text.data(), text.size(), "%%%02X", byte);
        out += text.data();
      }
    return out;
  }
  static std::string decoded(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i)
      if (text[i] == '%' && i + 2 < text.size()) {
        out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        out += text[i];
      }
    return out;
  }

  std::optional<HubRequest> receive(int socket, std::string& received, bool content) {
    size_t end = 0;
    while ((end = received.find("\r\n\r\n")) == std::string::npos) {
      std::array<char, 4096> piece{};
      const ssize_t got = ::recv(socket, piece.data(), piece.size(), 0);
      if (got <= 0) return std::nullopt;
      received.append(piece.data(), static_cast<size_t>(got));
    }
    const std::string head = received.substr(0, end + 2);
    received.erase(0, end + 4);
    HubRequest request;
    request.content = content;
    const size_t from = head.find(' ') + 1;
    const std::string target = head.substr(from, head.find(' ', from) - from);
    const size_t question = target.find('?');
    request.path = decoded(target.substr(0, question));
    if (question != std::string::npos) request.query = target.substr(question + 1);
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t stop = head.find("\r\n", at), colon = head.find(": ", at);
      if (colon < stop) request.headers[lower(head.substr(at, colon - at))] = head.substr(colon + 2, stop - colon - 2);
      at = stop + 2;
    }
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
    return request;
  }

  // Returns false after the connection has closed.
  bool respond(int socket, const HubRequest& request) {
    Answer answer;
    HubFault fault;
    {
      const std::lock_guard lock(mutex_);
      answer = request.content ? content_of(request) : answer_of(request);
      if (fault_) fault = fault_(request).value_or(HubFault());
    }
    if (fault.silent) {
      std::array<char, 16> rest{};
      while (::recv(socket, rest.data(), rest.size(), 0) > 0) {
      }
      return false;
    }
    if (fault.status != 0) answer = {fault.status, "", "it went wrong"};
    answer.headers += fault.headers;
    if (fault.wrong_byte && !answer.body.empty()) answer.body[answer.body.size() / 2] ^= 1;
    answer.body.append(static_cast<size_t>(fault.more_bytes), '!');
    const std::string range = request.header("range");
    if (answer.file && answer.status == 200 && !range.empty() && !fault.ignores_ranges)
      cut_range(answer, range, fault.wrong_range);
    return send_answer(socket, answer, fault);
  }

  static void cut_range(Answer& answer, const std::string& range, bool wrong) {
    const size_t size = answer.body.size(), begin = std::stoul(range.substr(6));
    const std::string last = range.substr(range.find('-') + 1);
    const size_t end = last.empty() ? size : std::min(size, std::stoul(last) + 1);
    if (begin >= size) {
      answer = {416, "Content-Range: bytes */" + std::to_string(size) + "\r\n", ""};
      return;
    }
    answer.status = 206;
    answer.headers += "Content-Range: bytes " + std::to_string(wrong ? begin + 1 : begin) + "-" +
                      std::to_string(end - 1) + "/" + std::to_string(size) + "\r\n";
    answer.body = answer.body.substr(begin, end - begin);
  }

  bool send_answer(int socket, const Answer& answer, const HubFault& fault) const {
    const std::string length = fault.endless ? "Transfer-Encoding: chunked\r\n"
                                             : "Content-Length: " + std::to_string(answer.body.size()) + "\r\n";
    if (!send(socket, "HTTP/1.1 " + std::to_string(answer.status) + " Whatever\r\n" + answer.headers + length + "\r\n"))
      return false;
    if (fault.endless) {
      const std::string chunk = "1000\r\n" + std::string(4096, '?') + "\r\n";
      while (send(socket, chunk)) {
      }
      return false;
    }
    const bool cut = fault.cut_after >= 0 && static_cast<size_t>(fault.cut_after) < answer.body.size();
    const std::string body = cut ? answer.body.substr(0, static_cast<size_t>(fault.cut_after)) : answer.body;
    constexpr size_t kPiece = 16 << 10;
    for (size_t at = 0; at < body.size(); at += kPiece) {
      if (!send(socket, body.substr(at, kPiece))) return false;
      if (fault.bytes_per_second > 0)
        std::this_thread::sleep_for(
            std::chrono::duration<double>(static_cast<double>(kPiece) / fault.bytes_per_second));
    }
    return !cut;
  }

  static bool send(int socket, const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t now = ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += static_cast<size_t>(now);
    }
    return true;
  }

  // Answers of the hub itself.
  Answer answer_of(const HubRequest& request) const {
    const bool api = request.path.starts_with("/api/");
    if (const auto moved = redirect_of_renamed(request)) return *moved;
    if (const std::string cache = "/api/resolve-cache/"; request.path.starts_with(cache))
      return cached(request.path.substr(cache.size()));
    for (const auto& [name, repository] : repositories_) {
      const std::string home =
          api ? "/api/" + name + "/" : "/" + (repository.kind == "model" ? repository.name : name) + "/";
      if (!request.path.starts_with(home)) continue;
      if (!repository.token.empty() && request.header("authorization") != "Bearer " + repository.token)
        return {request.header("authorization").empty() ? 401 : 403,
                "X-Error-Code: GatedRepo\r\nX-Error-Message: Access is restricted\r\n", ""};
      const std::string rest = request.path.substr(home.size());
      if (api && rest.starts_with("revision/")) return state_of(repository, rest.substr(9));
      const std::string tree = "tree/" + repository.commit, resolve = "resolve/" + repository.commit + "/";
      if (api && rest.starts_with(tree)) return tree_of(repository, rest.substr(tree.size()), request.query);
      if (!api && rest.starts_with(resolve)) return file_of(repository, rest.substr(resolve.size()));
    }
    return {api ? 401 : 404, "X-Error-Code: RepoNotFound\r\n", R"({"error":"Invalid username or password."})"};
  }

  static Answer state_of(const HubRepository& repository, const std::string& revision) {
    if (revision != "main" && revision != repository.commit)
      return {404, "X-Error-Code: RevisionNotFound\r\n", R"({"error":"Invalid rev id"})"};
    return {
        200, "",
        nlohmann::json(
            {{"id", repository.name}, {"sha", repository.commit}, {"private", false}, {"cardData", repository.card}})
            .dump()};
  }

  Answer tree_of(const HubRepository& repository, const std::string& folder, const std::string& query) const {
    nlohmann::json all = nlohmann::json::array();
    const std::string inside = folder.empty() ? "" : folder.substr(1) + "/";
    for (const auto& [path, content] : repository.files) {
      if (!path.starts_with(inside)) continue;
      nlohmann::json item = {{"type", "file"}, {"path", path}, {"size", content.size()}};
      item["oid"] = hex_digest(EVP_sha1(), "blob " + std::to_string(content.size()) + std::string(1, '\0') + content);
      if (content.size() >= large_) {
        item["xetHash"] = std::string(64, 'f');
        item["lfs"] = {{"oid", hex_digest(EVP_sha256(), content)}, {"size", content.size()}, {"pointerSize", 134}};
      }
      all.push_back(item);
      if (const size_t slash = path.rfind('/'); slash != std::string::npos)
        all.push_back(
            {{"type", "directory"}, {"path", path.substr(0, slash)}, {"oid", std::string(40, 'd')}, {"size", 0}});
    }
    for (const auto& item : repository.more_listed) all.push_back(item);
    if (all.empty() && !inside.empty()) return {404, "X-Error-Code: EntryNotFound\r\n", "{}"};
    const size_t at = query.find("cursor=");
    const size_t begin = at == std::string::npos ? 0 : std::stoul(query.substr(at + 7));
    const size_t end = std::min(all.size(), begin + page_size_);
    nlohmann::json page = nlohmann::json::array();
    for (size_t i = begin; i < end; ++i) page.push_back(all[i]);
    std::string link;
    if (end < all.size())
      link = "Link: <" + endpoint() + "/api/" + repository.kind + "s/" + repository.name + "/tree/" +
             repository.commit + folder + "?recursive=true&cursor=" + std::to_string(end) + ">; rel=\"next\"\r\n";
    return {200, link, page.dump()};
  }

  Answer file_of(const HubRepository& repository, const std::string& path) const {
    const auto found = repository.files.find(path);
    if (found == repository.files.end()) return {404, "X-Error-Code: EntryNotFound\r\n", ""};
    const std::string of_commit = "X-Repo-Commit: " + repository.commit + "\r\n";
    const std::string place = repository.kind + "s/" + repository.name + "/";
    if (found->second.size() < large_)
      return {307,
              of_commit + "Location: /api/resolve-cache/" + place + repository.commit + "/" + encoded(path) + "?%2F" +
                  encoded(path) + "=&etag=%22" + std::string(40, 'e') + "%22\r\n",
              "Temporary Redirect"};
    const std::string xet = std::string(64, 'f');
    return {302,
            of_commit + "X-Linked-Size: " + std::to_string(found->second.size()) + "\r\nX-Linked-ETag: \"" +
                hex_digest(EVP_sha256(), found->second) + "\"\r\nX-Xet-Hash: " + xet + "\r\nLink: <" + endpoint() +
                "/api/" + place + "xet-read-token/" + repository.commit + ">; rel=\"xet-auth\", <" +
                content_endpoint() + "/v1/reconstructions/" + xet +
                ">; rel=\"xet-reconstruction-info\"\r\nLocation: " + content_endpoint() + "/" + place + encoded(path) +
                "?X-Amz-Algorithm=AWS4-HMAC-SHA256&Signature=secret&Key-Pair-Id=K2\r\n",
            "Found. Redirecting"};
  }

  // KIND/OWNER/NAME/COMMIT/PATH
  Answer cached(const std::string& place) const {
    for (const auto& [name, repository] : repositories_)
      if (const std::string home = name + "/" + repository.commit + "/"; place.starts_with(home)) {
        const auto found = repository.files.find(place.substr(home.size()));
        if (found != repository.files.end()) return {200, "", found->second, true};
      }
    return {404, "X-Error-Code: EntryNotFound\r\n", ""};
  }

  std::optional<Answer> redirect_of_renamed(const HubRequest& request) const {
    for (const auto& [former, name] : renamed_)
      for (const std::string begin : {"/api/", "/"}) {
        const std::string home = begin + former + "/";
        if (!request.path.starts_with(home)) continue;
        const std::string query = request.query.empty() ? "" : "?" + request.query;
        return Answer{307,
                      "Location: " + begin + name + "/" + encoded(request.path.substr(home.size())) + query + "\r\n",
                      "Temporary Redirect. Redirecting"};
      }
    return std::nullopt;
  }

  // A signed URL is the complete authorization; as with S3, another one is an error.
  Answer content_of(const HubRequest& request) const {
    if (!request.header("authorization").empty())
      return {400, "", "<Error><Code>InvalidArgument</Code><Message>Only one auth mechanism allowed</Message></Error>"};
    if (request.query.find("Signature=secret") == std::string::npos)
      return {403, "", "<Error><Code>AccessDenied</Code></Error>"};
    for (const auto& [name, repository] : repositories_)
      if (const std::string home = "/" + name + "/"; request.path.starts_with(home)) {
        const auto found = repository.files.find(request.path.substr(home.size()));
        if (found != repository.files.end()) return {200, "", found->second, true};
      }
    return {403, "", "<Error><Code>AccessDenied</Code></Error>"};
  }

  const int hub_, content_;
  int hub_port_ = 0, content_port_ = 0;
  std::atomic<size_t> page_size_ = 1000, large_ = 1000;
  mutable std::mutex mutex_;  // guards the members below
  bool stopping_ = false;
  std::set<int> open_;
  std::vector<std::thread> sessions_;
  std::map<std::string, HubRepository> repositories_;
  std::map<std::string, std::string> renamed_;  // former "datasets/OWNER/NAME" -> current name
  std::function<std::optional<HubFault>(const HubRequest&)> fault_;
  std::vector<HubRequest> requests_;
  std::vector<std::thread> acceptors_;
};

// Random bytes, without repeated parts.
inline std::string random_bytes(size_t count, uint64_t seed = 1) {
  std::string bytes(count, '\0');
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (char& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(state >> 56);
  }
  return bytes;
}

}  // namespace witan::test
