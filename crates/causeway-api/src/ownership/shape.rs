//! The table of lists that are merged item by item. Everything else follows from the value: objects are
//! granular maps, other lists and scalars are one value.
//!
//! The table is the same for all kinds and has two readers: ownership, and the OpenAPI generator, which
//! writes it as `x-kubernetes-list-type` and `x-kubernetes-list-map-keys`.

/// The granularity at which the items of a list are owned and merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType {
    /// One value: a writer owns all of it.
    Atomic,
    /// Scalars, each owned on its own.
    Set,
    /// Objects identified by these fields, each owned on its own.
    Map(&'static [&'static str]),
}

impl ListType {
    /// The value of `x-kubernetes-list-type`.
    pub fn name(self) -> &'static str {
        match self {
            ListType::Atomic => "atomic",
            ListType::Set => "set",
            ListType::Map(_) => "map",
        }
    }
}

/// The lists that are not atomic: the field that holds them ("" for the top level), their name, their type.
pub const LISTS: &[(&str, &str, ListType)] = &[
    ("metadata", "finalizers", ListType::Set),
    ("metadata", "ownerReferences", ListType::Map(&["uid"])),
    ("status", "conditions", ListType::Map(&["type"])),
    ("", "allowedServers", ListType::Set),
    ("", "allowedSites", ListType::Set),
    ("", "eSites", ListType::Set),
    ("", "ePolicys", ListType::Set),
    ("", "members", ListType::Set),
];

/// The type of the list at `path`, given as field names from the top of an object. Inside the items of
/// a list every list is atomic.
pub fn list_type(path: &[&str]) -> ListType {
    path.iter().fold(Shape::OBJECT, |shape, name| shape.field(name)).list
}

/// The position of a walk in an object, as far as the table distinguishes positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    place: Option<&'static str>,
    pub list: ListType,
}

impl Shape {
    pub const OBJECT: Shape = Shape { place: Some(""), list: ListType::Atomic };
    const PLAIN: Shape = Shape { place: None, list: ListType::Atomic };

    pub fn field(self, name: &str) -> Shape {
        let Some(place) = self.place else { return Shape::PLAIN };
        if let Some((_, _, list)) = LISTS.iter().find(|(holder, list, _)| *holder == place && *list == name) {
            return Shape { place: None, list: *list };
        }
        let known =
            LISTS.iter().map(|(holder, _, _)| *holder).find(|holder| place.is_empty() && *holder == name);
        Shape { place: known, list: ListType::Atomic }
    }

    pub fn item(self) -> Shape {
        Shape::PLAIN
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Kind;

    #[test]
    fn only_the_lists_of_the_table_are_merged_by_item() {
        assert_eq!(list_type(&["status", "conditions"]), ListType::Map(&["type"]));
        assert_eq!(list_type(&["metadata", "ownerReferences"]), ListType::Map(&["uid"]));
        assert_eq!(list_type(&["metadata", "finalizers"]), ListType::Set);
        for name in ["allowedServers", "allowedSites", "eSites", "ePolicys", "members"] {
            assert_eq!(list_type(&[name]), ListType::Set, "{name}");
            assert_eq!(list_type(&["status", name]), ListType::Atomic, "status.{name}");
        }
        for path in
            [&["subnets"][..], &["conditions"], &["metadata"], &[], &[""], &["x", "status", "conditions"]]
        {
            assert_eq!(list_type(path), ListType::Atomic, "{path:?}");
        }
    }

    /// Every list in the schema of every kind, by its path.
    fn lists_of<'a>(schema: &'a Value, path: &mut Vec<&'a str>, found: &mut Vec<(Vec<&'a str>, &'a Value)>) {
        assert!(path.len() < 16, "the schemas are structural and flat");
        if schema["type"] == "array" {
            found.push((path.clone(), schema));
            return;
        }
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            path.push(name);
            lists_of(below, path, found);
            path.pop();
        }
    }

    #[test]
    fn the_schemas_say_the_same() {
        let mut seen = Vec::new();
        for kind in Kind::ALL {
            let mut found = Vec::new();
            lists_of(crate::schema::of(kind), &mut Vec::new(), &mut found);
            for (path, schema) in found {
                let list = list_type(&path);
                assert_eq!(schema["x-kubernetes-list-type"], list.name(), "{kind:?} {path:?}");
                if let ListType::Map(keys) = list {
                    assert_eq!(schema["x-kubernetes-list-map-keys"], json!(keys), "{kind:?} {path:?}");
                }
                seen.push(path.join("."));
            }
        }
        for (holder, name, _) in LISTS {
            let path = format!("{holder}.{name}");
            assert!(seen.iter().any(|seen| seen == path.trim_start_matches('.')), "no kind has {path}");
        }
    }
}
