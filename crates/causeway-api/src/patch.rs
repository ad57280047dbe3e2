//! Merge patches: JSON merge patch (RFC 7386), and strategic merge patch for the types that have strategies.
//!
//! Input: an object and a patch. Output: the patched object; on an error nothing was changed. Decoding,
//! validation and ownership come after. Strategic means: conditions by type, owner references by uid and
//! finalizers as a set; every other list is replaced, as in a JSON merge patch.

use serde_json::{Map, Value};

use crate::ownership::{ListType, list_type};

/// Deepest patch that is followed; our kinds need 6, and the JSON reader stops at 128.
const DEPTH_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    #[error("a merge patch must be a JSON object")]
    NotAnObject,
    #[error("the patch is deeper than {DEPTH_MAX} levels")]
    TooDeep,
    #[error("{field}: the directive {directive} is not supported")]
    Directive { field: String, directive: String },
    #[error("{field}: every item of the patch needs the merge key {key}")]
    MissingKey { field: String, key: String },
}

/// `object` after a JSON merge patch: null removes, objects are merged, everything else is replaced.
pub fn merge(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let patch = patch.as_object().ok_or(PatchError::NotAnObject)?;
    let mut patched = object.as_object().cloned().unwrap_or_default();
    merge_map(&mut patched, patch, 0)?;
    Ok(Value::Object(patched))
}

/// Returns `object` after a strategic merge patch.
///
/// `$patch: replace`, `delete` and `merge` work on maps and on items of merged lists, `$retainKeys` on maps,
/// `$deleteFromPrimitiveList` on finalizers. `$setElementOrder` is ignored: the order of our lists has no
/// meaning.
pub fn strategic(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let patch = patch.as_object().ok_or(PatchError::NotAnObject)?;
    let mut patched = object.as_object().cloned().unwrap_or_default();
    let mut walk = Strategic { path: Vec::new() };
    match directive(patch) {
        // An object cannot delete itself by a patch; the delete verb does that.
        Some("delete") => return Err(walk.refuse("$patch: delete")),
        _ => walk.map(&mut patched, patch)?,
    }
    Ok(Value::Object(patched))
}

fn merge_map(
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    depth: usize,
) -> Result<(), PatchError> {
    if depth == DEPTH_MAX {
        return Err(PatchError::TooDeep);
    }
    for (name, value) in patch {
        match value {
            Value::Null => drop(target.remove(name)),
            Value::Object(below) => merge_map(submap(target, name), below, depth + 1)?,
            value => drop(target.insert(name.clone(), value.clone())),
        }
    }
    Ok(())
}

/// Returns the map at `name`; a value that is not a map is replaced by an empty one.
fn submap<'a>(target: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let slot = target.entry(name).or_insert_with(|| Value::Object(Map::new()));
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("the slot was made an object one line above")
}

fn directive(patch: &Map<String, Value>) -> Option<&str> {
    patch.get("$patch").map(|value| value.as_str().unwrap_or("?"))
}

struct Strategic<'p> {
    /// Names of the fields on the path; inside an item of a list, those of the list and of the item.
    path: Vec<&'p str>,
}

impl<'p> Strategic<'p> {
    fn map(
        &mut self,
        target: &mut Map<String, Value>,
        patch: &'p Map<String, Value>,
    ) -> Result<(), PatchError> {
        if self.path.len() == DEPTH_MAX {
            return Err(PatchError::TooDeep);
        }
        match directive(patch) {
            None | Some("merge") => {}
            Some("replace") => target.clear(),
            Some(other) => return Err(self.refuse(&format!("$patch: {other}"))),
        }
        if let Some(kept) = patch.get("$retainKeys") {
            let kept = kept.as_array().ok_or_else(|| self.refuse("$retainKeys without a list"))?;
            target.retain(|name, _| kept.iter().any(|keep| keep.as_str() == Some(name)));
        }
        for (name, value) in patch {
            self.path.push(name);
            self.field(target, name, value)?;
            self.path.pop();
        }
        Ok(())
    }

    fn field(
        &mut self,
        target: &mut Map<String, Value>,
        name: &'p str,
        value: &'p Value,
    ) -> Result<(), PatchError> {
        if name.starts_with('$') {
            return self.directive(target, name, value);
        }
        match value {
            Value::Null => drop(target.remove(name)),
            Value::Object(below) if directive(below) == Some("delete") => drop(target.remove(name)),
            Value::Object(below) => self.map(submap(target, name), below)?,
            Value::Array(items) => {
                let slot = target.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                if !slot.is_array() {
                    *slot = Value::Array(Vec::new());
                }
                let list = slot.as_array_mut().expect("the slot was made a list one line above");
                self.list(list, items)?;
            }
            scalar => drop(target.insert(name.to_owned(), scalar.clone())),
        }
        Ok(())
    }

    fn directive(
        &mut self,
        target: &mut Map<String, Value>,
        name: &'p str,
        value: &'p Value,
    ) -> Result<(), PatchError> {
        let (verb, list) = name.split_once('/').unwrap_or((name, ""));
        match verb {
            "$patch" | "$retainKeys" | "$setElementOrder" => Ok(()),
            "$deleteFromPrimitiveList" => {
                self.path.pop();
                self.path.push(list);
                if self.strategy() != ListType::Set {
                    return Err(self.refuse(verb));
                }
                let gone = value.as_array().map(Vec::as_slice).unwrap_or_default();
                if let Some(items) = target.get_mut(list).and_then(Value::as_array_mut) {
                    items.retain(|item| !gone.contains(item));
                }
                Ok(())
            }
            _ => Err(self.refuse(name)),
        }
    }

    fn list(&mut self, target: &mut Vec<Value>, patch: &'p [Value]) -> Result<(), PatchError> {
        let replace = patch.iter().any(|item| item.as_object().and_then(directive) == Some("replace"));
        let items = patch.iter().filter(|item| item.as_object().and_then(directive) != Some("replace"));
        let strategy = self.strategy();
        if replace || strategy == ListType::Atomic {
            target.clear();
        }
        for item in items {
            match strategy {
                ListType::Map(keys) => self.item(target, item, keys)?,
                ListType::Set if target.contains(item) => {}
                ListType::Set | ListType::Atomic => {
                    if let Some(directive) = item.as_object().and_then(directive) {
                        return Err(self.refuse(&format!("$patch: {directive} in a list that is replaced")));
                    }
                    target.push(item.clone());
                }
            }
        }
        Ok(())
    }

    fn item(&mut self, target: &mut Vec<Value>, item: &'p Value, keys: &[&str]) -> Result<(), PatchError> {
        for key in keys {
            // Null would be merged away, and the item appended anew by every patch. An object or a list is
            // not a valid key either: a merge would change it, and the next patch would not find the item.
            if item.get(*key).is_none_or(|key| key.is_null() || key.is_object() || key.is_array()) {
                return Err(PatchError::MissingKey { field: self.field_path(), key: (*key).to_owned() });
            }
        }
        let Some(patch) = item.as_object() else { return Ok(()) };
        let same = |held: &Value| keys.iter().all(|key| held.get(*key) == item.get(*key));
        if directive(patch) == Some("delete") {
            target.retain(|held| !same(held));
            return Ok(());
        }
        let place = target.iter().position(same).unwrap_or_else(|| {
            target.push(Value::Object(Map::new()));
            target.len() - 1
        });
        let held =
            target[place].as_object_mut().expect("an item with a key, or the one just made, is an object");
        self.map(held, patch)
    }

    fn strategy(&self) -> ListType {
        match self.path.as_slice() {
            path @ (["status", "conditions"] | ["metadata", "ownerReferences" | "finalizers"]) => {
                list_type(path)
            }
            _ => ListType::Atomic,
        }
    }

    fn refuse(&self, directive: &str) -> PatchError {
        PatchError::Directive { field: self.field_path(), directive: harmless(directive) }
    }

    fn field_path(&self) -> String {
        if self.path.is_empty() { "the object".to_owned() } else { harmless(&self.path.join(".")) }
    }
}

/// A client's text as it may appear in a message: printable, and truncated when long.
fn harmless(text: &str) -> String {
    let printable = text.replace(char::is_control, " ");
    match printable.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &printable[..end]),
        None => printable,
    }
}

// Deeper and longer than any field of ours.
const SHOWN_MAX: usize = 120;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check_merge(row: &str, object: Value, patch: Value, expected: Value) {
        assert_eq!(merge(&object, &patch), Ok(expected), "{row}");
    }

    #[test]
    fn a_merge_patch_follows_rfc_7386() {
        check_merge("replaces a value", json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"}));
        check_merge("adds a value", json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"}));
        check_merge("null removes", json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"}));
        check_merge("null of nothing", json!({}), json!({"a": null}), json!({}));
        check_merge("a list is replaced", json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]}));
        check_merge("null in a list stays", json!({}), json!({"a": [null]}), json!({"a": [null]}));
        check_merge(
            "maps are merged",
            json!({"a": {"b": 1, "c": 2}}),
            json!({"a": {"b": 3, "c": null}}),
            json!({"a": {"b": 3}}),
        );
        check_merge(
            "a map replaces a scalar",
            json!({"a": 1}),
            json!({"a": {"b": {"c": null}}}),
            json!({"a": {"b": {}}}),
        );
        check_merge(
            "no directive is special",
            json!({}),
            json!({"$patch": "delete"}),
            json!({"$patch": "delete"}),
        );
    }

    #[test]
    fn what_is_no_patch_is_refused() {
        for patch in [json!(null), json!([]), json!("x"), json!(1)] {
            assert_eq!(merge(&json!({}), &patch), Err(PatchError::NotAnObject), "{patch}");
            assert_eq!(strategic(&json!({}), &patch), Err(PatchError::NotAnObject), "{patch}");
        }
        let deep = (0..100).fold(json!(1), |inner, _| json!({ "a": inner }));
        assert_eq!(merge(&json!({}), &deep), Err(PatchError::TooDeep));
        assert_eq!(strategic(&json!({}), &deep), Err(PatchError::TooDeep));
    }

    fn check(row: &str, object: Value, patch: Value, expected: Result<Value, &str>) {
        let patched = strategic(&object, &patch).map_err(|error| error.to_string());
        assert_eq!(patched, expected.map_err(str::to_owned), "{row}");
    }

    fn conditions(items: Value) -> Value {
        json!({"status": {"conditions": items}})
    }

    #[test]
    fn a_strategic_patch_merges_the_lists_that_have_a_key() {
        let ready = json!({"type": "Ready", "status": "False", "reason": "No"});
        let live = json!({"type": "Live", "status": "True"});
        check(
            "an item is merged by its key",
            conditions(json!([ready, live])),
            conditions(json!([{"type": "Ready", "status": "True", "reason": null}])),
            Ok(conditions(json!([{"type": "Ready", "status": "True"}, live]))),
        );
        check(
            "a new item is added",
            conditions(json!([live])),
            conditions(json!([ready])),
            Ok(conditions(json!([live, ready]))),
        );
        check(
            "an item is deleted by its key",
            conditions(json!([ready, live])),
            conditions(json!([{"type": "Ready", "$patch": "delete"}])),
            Ok(conditions(json!([live]))),
        );
        check(
            "a list is replaced on request",
            conditions(json!([ready])),
            conditions(json!([live, {"$patch": "replace"}])),
            Ok(conditions(json!([live]))),
        );
        check(
            "an item without its key is refused",
            conditions(json!([])),
            conditions(json!([{"status": "True"}])),
            Err("status.conditions: every item of the patch needs the merge key type"),
        );
        check(
            "an item whose key is null has none",
            json!({"metadata": {}}),
            json!({"metadata": {"ownerReferences": [{"uid": null, "name": "a"}]}}),
            Err("metadata.ownerReferences: every item of the patch needs the merge key uid"),
        );
        check(
            "an item whose key is an object has none",
            json!({"metadata": {}}),
            json!({"metadata": {"ownerReferences": [{"uid": {"a": null}, "name": "a"}]}}),
            Err("metadata.ownerReferences: every item of the patch needs the merge key uid"),
        );
        check(
            "finalizers are a set",
            json!({"metadata": {"finalizers": ["a"]}}),
            json!({"metadata": {"finalizers": ["b", "a"], "$setElementOrder/finalizers": ["b", "a"]}}),
            Ok(json!({"metadata": {"finalizers": ["a", "b"]}})),
        );
        check(
            "finalizers can be deleted one by one",
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
            Ok(json!({"metadata": {"finalizers": ["b"]}})),
        );
        check(
            "other lists are replaced",
            json!({"eSites": ["a"]}),
            json!({"eSites": ["b"]}),
            Ok(json!({"eSites": ["b"]})),
        );
    }

    #[test]
    fn directives_work_on_maps_or_are_refused_by_name() {
        let object = json!({"limits": {"connections": 1, "requestsPerSecond": 2}, "port": 1});
        check(
            "replace",
            object.clone(),
            json!({"limits": {"$patch": "replace", "connections": 3}}),
            Ok(json!({"limits": {"connections": 3}, "port": 1})),
        );
        check("delete", object.clone(), json!({"limits": {"$patch": "delete"}}), Ok(json!({"port": 1})));
        check(
            "retain",
            object.clone(),
            json!({"limits": {"$retainKeys": ["connections"]}}),
            Ok(json!({"limits": {"connections": 1}, "port": 1})),
        );
        check("null", object.clone(), json!({"limits": null}), Ok(json!({"port": 1})));
        check(
            "an unknown one",
            object.clone(),
            json!({"limits": {"$patch": "explode"}}),
            Err("limits: the directive $patch: explode is not supported"),
        );
        check(
            "the whole object",
            object.clone(),
            json!({"$patch": "delete"}),
            Err("the object: the directive $patch: delete is not supported"),
        );
        check(
            "an item of a list that is replaced",
            object.clone(),
            json!({"endpoints": [{"ip": "1.2.3.4", "$patch": "delete"}]}),
            Err("endpoints: the directive $patch: delete in a list that is replaced is not supported"),
        );
        check(
            "a list without a strategy",
            object,
            json!({"$deleteFromPrimitiveList/eSites": ["a"]}),
            Err("eSites: the directive $deleteFromPrimitiveList is not supported"),
        );
        let (long, name) = (format!("$x{}", "\n".repeat(10_000)), format!("$x{}", " ".repeat(118)));
        check(
            "a long and strange one",
            json!({}),
            json!({long: 1}),
            Err(&format!("{name}…: the directive {name}… is not supported")),
        );
    }
}
