// A client with a raw socket that can send arbitrary bytes.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace witan::test {

struct HttpAnswer {
  int status = 0;
  std::string head, body;  // a chunked body is joined
  nlohmann::json json() const { return nlohmann::json::parse(body); }
  std::string error() const { return json().at("error").at("message"); }
  std::string code() const { return json().at("error").at("code"); }
};

class HttpClient {
 public:
  explicit HttpClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(static_cast<uint16_t>(port));
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval most{20, 0};  // a hang fails the test
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&place), sizeof place) != 0)
      throw std::runtime_error("cannot connect");
  }
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  // Closes the sending side; answers are still received.
  void end_sending() { ::shutdown(socket_, SHUT_WR); }
  // Returns false if the server no longer accepts data.
  bool send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t now = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += static_cast<size_t>(now);
    }
    return true;
  }
  // Whether the server sends data or closes the connection within this time.
  bool is_answered_within(int milliseconds) const {
    pollfd waiting{socket_, POLLIN, 0};
    return ::poll(&waiting, 1, milliseconds) > 0;
  }
  // Receives more bytes; returns false if the connection has ended.
  bool receive() {
    char piece[4096];
    const ssize_t got = ::recv(socket_, piece, sizeof piece, 0);
    if (got < 0 && errno == EAGAIN) throw std::runtime_error("the server does not answer: " + received_);
    if (got > 0) received_.append(piece, static_cast<size_t>(got));
    return got > 0;
  }
  bool receive_until(const std::string& text) {
    while (received_.find(text) == std::string::npos)
      if (!receive()) return false;
    return true;
  }
  // The head of the next answer, which is a complete answer to HEAD.
  HttpAnswer head() {
    if (!receive_until("\r\n\r\n")) return {};
    HttpAnswer out;
    out.head = take(received_.find("\r\n\r\n") + 4);
    out.status = std::stoi(out.head.substr(out.head.find(' ')));
    return out;
  }
  // The next answer; status 0 if the connection ended before one.
  HttpAnswer answer() {
    HttpAnswer out = head();
    if (out.status == 0) return out;
    if (const auto length = header(out.head, "Content-Length"); !length.empty())
      out.body = take(std::stoul(length));
    else if (header(out.head, "Transfer-Encoding") == "chunked")
      while (true) {
        receive_until("\r\n");
        const size_t size = std::stoul(take(received_.find("\r\n") + 2), nullptr, 16);
        out.body += take(size);
        take(2);
        if (size == 0) break;
      }
    else if (out.status != 100)
      while (true)
        if (!receive()) {
          out.body = take(received_.size());
          break;
        }
    return out;
  }
  HttpAnswer get(const std::string& path, const std::string& headers = "") {
    send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
    return answer();
  }
  HttpAnswer post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send(post_text(path, body, headers));
    return answer();
  }
  static std::string post_text(const std::string& path, const std::string& body, const std::string& headers = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
  }
  static std::string header(const std::string& head, const std::string& name) {
    const size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }

 private:
  std::string take(size_t count) {
    while (received_.size() < count)
      if (!receive()) throw std::runtime_error("the answer is cut off: " + received_);
    std::string bytes = received_.substr(0, count);
    received_.erase(0, count);
    return bytes;
  }

  int socket_;
  std::string received_;
};

// Decompresses an answer. Throws std::runtime_error unless it is a single, complete and valid gzip member.
inline std::string gunzip(const std::string& bytes) {
  z_stream stream{};
  if (inflateInit2(&stream, MAX_WBITS + 16) != Z_OK) throw std::runtime_error("no memory");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string text;
  int state = Z_OK;
  while (state == Z_OK) {
    char piece[4096];
    stream.next_out = reinterpret_cast<Bytef*>(piece);
    stream.avail_out = sizeof piece;
    state = inflate(&stream, Z_NO_FLUSH);
    text.append(piece, sizeof piece - stream.avail_out);
  }
  const bool whole = state == Z_STREAM_END && stream.avail_in == 0;
  inflateEnd(&stream);
  if (!whole) throw std::runtime_error("this is no gzip");
  return text;
}

}  // namespace witan::test
