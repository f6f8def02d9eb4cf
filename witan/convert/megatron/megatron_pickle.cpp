#include "witan/convert/megatron/megatron_pickle.h"

#include <bit>
#include <cstring>
#include <unordered_map>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

using Kind = PickleValue::Kind;

const PickleValue* PickleValue::find(std::string_view key) const {
  if (kind != Kind::dict && kind != Kind::object) return nullptr;
  const PickleValue* found = nullptr;
  for (size_t i = kind == Kind::object ? 2 : 0; i + 1 < items.size(); i += 2)
    if (items[i]->kind == Kind::text && items[i]->text == key) found = items[i + 1];
  return found;
}

std::map<std::string_view, const PickleValue*> PickleValue::members() const {
  std::map<std::string_view, const PickleValue*> all;
  if (kind != Kind::dict && kind != Kind::object) return all;
  for (size_t i = kind == Kind::object ? 2 : 0; i + 1 < items.size(); i += 2)
    if (items[i]->kind == Kind::text) all[items[i]->text] = items[i + 1];
  return all;
}

// The stack machine that executes a pickle; a call only makes a value that records it.
class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, const std::string& where, Pickle& out)
      : bytes_(bytes), where_(where), out_(out) {}

  void run() {
    while (!stopped_) {
      const auto opcode = static_cast<uint8_t>(take(1)[0]);
      if (!constant(opcode) && !text(opcode) && !container(opcode) && !memo(opcode) && !object(opcode))
        fail(cat("holds opcode ", static_cast<int>(opcode),
                 ", which no checkpoint of tensors needs: Witan reads pickles as data and runs nothing in them"));
    }
    out_.read_ = at_;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw CheckpointError(cat(where_, ": the pickle ", why, " (at byte ", at_, ")"));
  }
  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) fail("ends in the middle: copy the file again");
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  uint64_t little(size_t bytes) {
    const std::string_view taken = take(bytes);
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(taken[i]);
    return value;
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("ends in the middle: copy the file again");
    const std::string_view taken = take(end - at_);
    take(1);
    return taken;
  }

  PickleValue& make(Kind kind) {
    PickleValue& value = out_.values_.emplace_back();
    value.kind = kind;
    return value;
  }
  void push(PickleValue& value) { stack_.push_back(&value); }
  PickleValue& push(Kind kind) {
    PickleValue& value = make(kind);
    push(value);
    return value;
  }
  size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleValue& pop() {
    if (stack_.size() <= bottom()) fail("takes a value from an empty stack");
    PickleValue& value = *stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    if (stack_.size() <= bottom()) fail("reads a value from an empty stack");
    return *stack_.back();
  }
  // Pops the values above the last mark, and the mark.
  std::vector<const PickleValue*> pop_to_mark() {
    if (marks_.empty()) fail("looks for a mark that is not there");
    const std::vector<const PickleValue*> above(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return above;
  }

  bool constant(uint8_t opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        if (const uint64_t protocol = little(1); protocol < 2 || protocol > 5)
          fail(cat("is of protocol ", protocol, ", and Witan reads 2 to 5"));
        return true;
      case 0x95:  // FRAME
        little(8);
        return true;
      case '.':
        stopped_ = true;
        out_.root_ = &pop();
        return true;
      case 'N':
        push(Kind::none);
        return true;
      case 0x88:  // NEWTRUE
      case 0x89:
        push(Kind::boolean).integer = opcode == 0x88;
        return true;
      case 'J':
        push(Kind::integer).integer = static_cast<int32_t>(static_cast<uint32_t>(little(4)));
        return true;
      case 'K':
        push(Kind::integer).integer = static_cast<int64_t>(little(1));
        return true;
      case 'M':
        push(Kind::integer).integer = static_cast<int64_t>(little(2));
        return true;
      case 0x8a:  // LONG1
        whole_number(take(little(1)));
        return true;
      case 'G': {
        uint64_t bits = 0;
        for (const char byte : take(8)) bits = bits << 8 | static_cast<uint8_t>(byte);
        push(Kind::number).number = std::bit_cast<double>(bits);
        return true;
      }
      default:
        return false;
    }
  }

  // Two's complement, the lowest byte first.
  void whole_number(std::string_view digits) {
    if (digits.size() > 8) {
      push(Kind::bytes).text = digits;
      return;
    }
    uint64_t value = !digits.empty() && static_cast<int8_t>(digits.back()) < 0 ? ~uint64_t{0} : 0;
    for (size_t i = digits.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(digits[i]);
    push(Kind::integer).integer = static_cast<int64_t>(value);
  }

  bool text(uint8_t opcode) {
    switch (opcode) {
      case 0x8c:  // SHORT_BINUNICODE
      case 'U':   // SHORT_BINSTRING
        return push_text(Kind::text, 1);
      case 'X':
      case 'T':
        return push_text(Kind::text, 4);
      case 0x8d:  // BINUNICODE8
        return push_text(Kind::text, 8);
      case 'C':
        return push_text(Kind::bytes, 1);
      case 'B':
        return push_text(Kind::bytes, 4);
      case 0x8e:  // BINBYTES8
      case 0x96:  // BYTEARRAY8
        return push_text(Kind::bytes, 8);
      default:
        return false;
    }
  }
  bool push_text(Kind kind, size_t length_bytes) {
    const std::string_view held = take(little(length_bytes));
    push(kind).text = held;
    return true;
  }

  bool container(uint8_t opcode) {
    switch (opcode) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':
        pop();
        return true;
      case '1':
        pop_to_mark();
        return true;
      case '2':
        push(top());
        return true;
      case ']':
      case ')':
      case 0x8f:  // EMPTY_SET
        push(Kind::list);
        return true;
      case '}':
        push(Kind::dict);
        return true;
      case 0x85:  // TUPLE1 to TUPLE3
      case 0x86:
      case 0x87:
        push_tuple(opcode - 0x84U);
        return true;
      case 't':
      case 'l':
      case 0x91: {  // FROZENSET
        auto items = pop_to_mark();
        push(Kind::list).items = std::move(items);
        return true;
      }
      case 'd': {
        auto items = pop_to_mark();
        put_in(push(Kind::dict), items, 2);
        return true;
      }
      case 'a':
        put_in_top({&pop()}, 1);
        return true;
      case 'e':
      case 0x90:  // ADDITEMS
        put_in_top(pop_to_mark(), 1);
        return true;
      case 's': {
        const PickleValue &value = pop(), &key = pop();
        put_in_top({&key, &value}, 2);
        return true;
      }
      case 'u':
        put_in_top(pop_to_mark(), 2);
        return true;
      default:
        return false;
    }
  }
  void push_tuple(size_t count) {
    std::vector<const PickleValue*> items(count);
    for (size_t i = count; i-- > 0;) items[i] = &pop();
    push(Kind::list).items = std::move(items);
  }
  void put_in_top(const std::vector<const PickleValue*>& items, size_t at_a_time) { put_in(top(), items, at_a_time); }
  void put_in(PickleValue& into, const std::vector<const PickleValue*>& items, size_t at_a_time) {
    if (!into.is(Kind::object) && !into.is(at_a_time == 1 ? Kind::list : Kind::dict))
      fail("puts values into what holds none");
    if (items.size() % at_a_time != 0) fail("has a key without a value");
    into.items.insert(into.items.end(), items.begin(), items.end());
  }

  bool memo(uint8_t opcode) {
    switch (opcode) {
      case 'q':
        memo_[little(1)] = &top();
        return true;
      case 'r':
        memo_[little(4)] = &top();
        return true;
      case 0x94: {  // MEMOIZE
        const uint64_t next = memo_.size();
        memo_[next] = &top();
        return true;
      }
      case 'h':
        recall(little(1));
        return true;
      case 'j':
        recall(little(4));
        return true;
      default:
        return false;
    }
  }
  void recall(uint64_t index) {
    const auto known = memo_.find(index);
    if (known == memo_.end()) fail("recalls what it has not kept");
    push(*known->second);
  }

  bool object(uint8_t opcode) {
    switch (opcode) {
      case 'c': {
        PickleValue& name = make(Kind::global);
        name.text = line();
        name.name = line();
        push(name);
        return true;
      }
      case 0x93: {  // STACK_GLOBAL
        const PickleValue &name = pop(), &module = pop();
        if (!name.is(Kind::text) || !module.is(Kind::text)) fail("names a global by something other than text");
        PickleValue& made = push(Kind::global);
        made.text = module.text;
        made.name = name.text;
        return true;
      }
      case 0x92:  // NEWOBJ_EX
        pop();
        [[fallthrough]];
      case 'R':
      case 0x81: {  // NEWOBJ
        const PickleValue &arguments = pop(), &callee = pop();
        if (!arguments.is(Kind::list)) fail("calls with what are no arguments");
        push(Kind::object).items = {&callee, &arguments};
        return true;
      }
      case 'b': {
        const PickleValue& state = pop();
        PickleValue& of = top();
        if (!of.is(Kind::object)) fail("sets attributes of what is no object");
        of.state = &state;
        return true;
      }
      case 'Q': {
        const PickleValue& id = pop();
        push(Kind::persistent).items = {&id};
        return true;
      }
      default:
        return false;
    }
  }

  const std::string_view bytes_;
  const std::string& where_;
  Pickle& out_;
  size_t at_ = 0;
  bool stopped_ = false;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // of the stack, where its parts begin
  std::unordered_map<uint64_t, PickleValue*> memo_;
};

Pickle::Pickle(std::string_view bytes, const std::string& where) {
  PickleMachine(bytes, where, *this).run();
}

}  // namespace witan
