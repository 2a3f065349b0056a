// A window join over two B+-trees in C++, one thread: what `push_cost` compares `push` with.
//
// Both sides have rows (k, v, id) and count windows of the same size. A tuple is looked up in the other side's tree by
// |l.k - r.k| <= band, the matching rows of both sides are copied into the columns of the result in the order of their
// positions, the tuple that leaves its window is erased from its own tree, and the tuple is inserted. Tuples come in
// batches of left and right rows, as pushes do; each batch starts with empty result columns.
//
// Usage: btree_window_join WINDOW ROWS BATCHES BAND SPREAD SEED
// Prints: the CPU seconds of the batches, and the number of result rows.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cstring>
#include <random>
#include <vector>

namespace {

struct Entry {
    int64_t key;
    int64_t seq;
    bool operator<(const Entry& other) const { return key != other.key ? key < other.key : seq < other.seq; }
};

// A B+-tree of (key, seq): sorted leaves linked in order, inner nodes with the smallest entry of each child.
// Leaves that become empty are removed; half-empty ones are not merged, as entries leave as fast as they come.
class BPlusTree {
    static constexpr int LEAF = 32;
    static constexpr int INNER = 32;

    struct Node {
        bool leaf;
        int count = 0;
        explicit Node(bool is_leaf) : leaf(is_leaf) {}
    };
    struct Leaf : Node {
        Entry entries[LEAF];
        Leaf* next = nullptr;
        Leaf* previous = nullptr;
        Leaf() : Node(true) {}
    };
    struct Inner : Node {
        Entry least[INNER];
        Node* children[INNER];
        Inner() : Node(false) {}
    };

    Node* root_ = new Leaf();

    static int child_of(const Inner* node, const Entry& entry) {
        int at = static_cast<int>(std::upper_bound(node->least + 1, node->least + node->count, entry) - node->least) - 1;
        return at;
    }

    // Inserts below `node`; returns the new right sibling if the node was split.
    Node* insert(Node* node, const Entry& entry, Entry& least_of_new) {
        if (node->leaf) {
            auto* leaf = static_cast<Leaf*>(node);
            int at = static_cast<int>(std::lower_bound(leaf->entries, leaf->entries + leaf->count, entry) - leaf->entries);
            if (leaf->count < LEAF) {
                put(leaf, at, entry);
                return nullptr;
            }
            auto* right = new Leaf();
            int half = LEAF / 2;
            std::memcpy(right->entries, leaf->entries + half, sizeof(Entry) * (LEAF - half));
            right->count = LEAF - half;
            leaf->count = half;
            right->next = leaf->next;
            right->previous = leaf;
            if (right->next != nullptr) right->next->previous = right;
            leaf->next = right;
            if (at <= half) put(leaf, at, entry); else put(right, at - half, entry);
            least_of_new = right->entries[0];
            return right;
        }
        auto* inner = static_cast<Inner*>(node);
        int at = child_of(inner, entry);
        Entry least;
        Node* created = insert(inner->children[at], entry, least);
        if (created == nullptr) return nullptr;
        if (inner->count < INNER) {
            put(inner, at + 1, least, created);
            return nullptr;
        }
        auto* right = new Inner();
        int half = INNER / 2;
        std::memcpy(right->least, inner->least + half, sizeof(Entry) * (INNER - half));
        std::memcpy(right->children, inner->children + half, sizeof(Node*) * (INNER - half));
        right->count = INNER - half;
        inner->count = half;
        if (at + 1 <= half) put(inner, at + 1, least, created); else put(right, at + 1 - half, least, created);
        least_of_new = right->least[0];
        return right;
    }

    static void put(Leaf* leaf, int at, const Entry& entry) {
        std::memmove(leaf->entries + at + 1, leaf->entries + at, sizeof(Entry) * (leaf->count - at));
        leaf->entries[at] = entry;
        leaf->count++;
    }

    static void put(Inner* inner, int at, const Entry& least, Node* child) {
        std::memmove(inner->least + at + 1, inner->least + at, sizeof(Entry) * (inner->count - at));
        std::memmove(inner->children + at + 1, inner->children + at, sizeof(Node*) * (inner->count - at));
        inner->least[at] = least;
        inner->children[at] = child;
        inner->count++;
    }

    // Erases below `node`; true if the node is empty then.
    bool erase(Node* node, const Entry& entry) {
        if (node->leaf) {
            auto* leaf = static_cast<Leaf*>(node);
            int at = static_cast<int>(std::lower_bound(leaf->entries, leaf->entries + leaf->count, entry) - leaf->entries);
            std::memmove(leaf->entries + at, leaf->entries + at + 1, sizeof(Entry) * (leaf->count - at - 1));
            return --leaf->count == 0;
        }
        auto* inner = static_cast<Inner*>(node);
        int at = child_of(inner, entry);
        Node* child = inner->children[at];
        if (!erase(child, entry)) return false;
        if (child->leaf) {
            auto* leaf = static_cast<Leaf*>(child);
            if (leaf->previous != nullptr) leaf->previous->next = leaf->next;
            if (leaf->next != nullptr) leaf->next->previous = leaf->previous;
            delete leaf;
        } else {
            delete static_cast<Inner*>(child);
        }
        std::memmove(inner->least + at, inner->least + at + 1, sizeof(Entry) * (inner->count - at - 1));
        std::memmove(inner->children + at, inner->children + at + 1, sizeof(Node*) * (inner->count - at - 1));
        return --inner->count == 0;
    }

  public:
    void insert(const Entry& entry) {
        Entry least;
        Node* created = insert(root_, entry, least);
        if (created == nullptr) return;
        auto* root = new Inner();
        root->count = 2;
        root->least[0] = Entry{INT64_MIN, INT64_MIN};
        root->children[0] = root_;
        root->least[1] = least;
        root->children[1] = created;
        root_ = root;
    }

    void erase(const Entry& entry) {
        if (erase(root_, entry)) {
            if (!root_->leaf) delete static_cast<Inner*>(root_);
            if (!root_->leaf) root_ = new Leaf();
        }
    }

    template <typename Take>
    void range(int64_t low, int64_t high, Take take) const {
        const Node* node = root_;
        const Entry first{low, INT64_MIN};
        while (!node->leaf) {
            const auto* inner = static_cast<const Inner*>(node);
            node = inner->children[child_of(inner, first)];
        }
        const auto* leaf = static_cast<const Leaf*>(node);
        int at = static_cast<int>(std::lower_bound(leaf->entries, leaf->entries + leaf->count, first) - leaf->entries);
        for (; leaf != nullptr; leaf = leaf->next, at = 0) {
            for (; at < leaf->count; at++) {
                if (leaf->entries[at].key > high) return;
                take(leaf->entries[at].seq);
            }
        }
    }
};

struct Row {
    int64_t k;
    double v;
    int64_t id;
};

struct Side {
    BPlusTree tree;
    std::vector<Row> rows;  // a ring of the window's size
    int64_t count = 0;
};

struct Columns {
    std::vector<int64_t> k, id;
    std::vector<double> v;
    void add(const Row& row) {
        k.push_back(row.k);
        v.push_back(row.v);
        id.push_back(row.id);
    }
    void clear() {
        k.clear();
        v.clear();
        id.clear();
    }
};

class Join {
    int64_t window_, band_;
    Side sides_[2];
    std::vector<int64_t> matches_;

  public:
    Columns result[2];

    Join(int64_t window, int64_t band) : window_(window), band_(band) {
        for (Side& side : sides_) side.rows.resize(window);
    }

    void push(int own, const Row& row) {
        Side& mine = sides_[own];
        Side& other = sides_[1 - own];
        matches_.clear();
        other.tree.range(row.k - band_, row.k + band_, [&](int64_t seq) { matches_.push_back(seq); });
        std::sort(matches_.begin(), matches_.end());
        for (int64_t seq : matches_) {
            result[own].add(row);
            result[1 - own].add(other.rows[seq % window_]);
        }
        Row& place = mine.rows[mine.count % window_];
        if (mine.count >= window_) mine.tree.erase(Entry{place.k, mine.count - window_});
        place = row;
        mine.tree.insert(Entry{row.k, mine.count});
        mine.count++;
    }
};

}  // namespace

int main(int count, char** arguments) {
    if (count != 7) return 2;
    const int64_t window = std::atoll(arguments[1]), rows = std::atoll(arguments[2]), batches = std::atoll(arguments[3]);
    const int64_t band = std::atoll(arguments[4]), spread = std::atoll(arguments[5]);
    std::mt19937_64 random(std::atoll(arguments[6]));
    auto row = [&](int64_t id) { return Row{static_cast<int64_t>(random() % spread), 0.5 * id, id}; };
    Join join(window, band);
    for (int64_t i = 0; i < window; i++) {
        for (int side = 0; side < 2; side++) join.push(side, row(i));
        for (Columns& columns : join.result) columns.clear();
    }
    std::vector<Row> pushed(2 * rows * batches);
    for (size_t i = 0; i < pushed.size(); i++) pushed[i] = row(static_cast<int64_t>(i));
    int64_t results = 0;
    double checked = 0;
    const std::clock_t begin = std::clock();
    for (int64_t batch = 0; batch < batches; batch++) {
        for (Columns& columns : join.result) columns = Columns();
        const Row* at = pushed.data() + 2 * rows * batch;
        for (int side = 0; side < 2; side++) {
            for (int64_t i = 0; i < rows; i++) join.push(side, at[side * rows + i]);
        }
        results += static_cast<int64_t>(join.result[0].k.size());
        for (double v : join.result[1].v) checked += v;
    }
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    std::printf("%.9f %lld %g\n", seconds, static_cast<long long>(results), checked);
    return 0;
}
