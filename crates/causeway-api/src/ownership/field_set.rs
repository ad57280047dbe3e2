//! Sets of field paths, as trees, in Kubernetes' FieldsV1 form.
//!
//! A node that is a member stands for the field itself; a node that only has children leads to members. Every
//! constructor bounds the depth, so the recursion below is bounded too; reading foreign text also bounds the
//! number of elements.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::element::Element;

/// Deepest path in a set. Our kinds need 6; a deeper field is treated as part of one value.
pub const DEPTH_MAX: usize = 32;

/// Most elements in all sets of one object, so that ownership cannot outgrow the object it describes.
pub const ELEMENTS_MAX: usize = 20_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    nodes: BTreeMap<Element, FieldSetNode>,
}

/// Invariant: a node is a member, or has children, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldSetNode {
    pub member: bool,
    pub children: FieldSet,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSetError {
    #[error("{element:?} is not an element of a field path")]
    Malformed { element: String },
    #[error("a field set is made of JSON objects")]
    NotAnObject,
    #[error("a field path is deeper than {DEPTH_MAX} elements")]
    TooDeep,
    #[error("field sets of more than {ELEMENTS_MAX} elements are not kept")]
    TooLarge,
}

/// A path in readable form: `.status.conditions[type="Ready"].status`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPath(pub Vec<Element>);

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| write!(f, "{element}"))
    }
}

impl FieldSet {
    /// Reads FieldsV1.
    pub fn parse(fields: &Value) -> Result<FieldSet, FieldSetError> {
        let mut budget = ELEMENTS_MAX;
        FieldSet::parse_within(fields, &mut budget)
    }

    /// Reads FieldsV1 and takes its size from `budget`, which several sets may share.
    pub(super) fn parse_within(fields: &Value, budget: &mut usize) -> Result<FieldSet, FieldSetError> {
        Ok(FieldSetNode::parse(fields, 0, budget)?.children)
    }

    /// Writes FieldsV1.
    pub fn print(&self) -> Value {
        Value::Object(self.nodes.iter().map(|(element, node)| (element.print(), node.print())).collect())
    }

    /// Adds one path. A path deeper than `DEPTH_MAX` is cut: it then names the value that holds the rest.
    pub fn insert(&mut self, path: &[Element]) {
        let Some((first, rest)) = path[..path.len().min(DEPTH_MAX)].split_first() else { return };
        let mut node = self.nodes.entry(first.clone()).or_default();
        for element in rest {
            node = node.children.nodes.entry(element.clone()).or_default();
        }
        node.member = true;
    }

    /// A set of plain field names, for constants: `&[&["metadata", "name"]]`.
    pub fn of_fields(paths: &[&[&str]]) -> FieldSet {
        let mut set = FieldSet::default();
        for path in paths {
            let elements: Vec<Element> = path.iter().map(|name| Element::field(*name)).collect();
            set.insert(&elements);
        }
        set
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Number of elements, including those that only lead to members: the cost of a set.
    pub fn size(&self) -> usize {
        self.nodes.values().map(|node| 1 + node.children.size()).sum()
    }

    pub fn contains(&self, path: &[Element]) -> bool {
        let mut set = self;
        let mut member = false;
        for element in path {
            let Some(node) = set.nodes.get(element) else { return false };
            member = node.member;
            set = &node.children;
        }
        member
    }

    /// Every member, parents before their children.
    pub fn paths(&self) -> Vec<FieldPath> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    pub fn union(&self, other: &FieldSet) -> FieldSet {
        let mut nodes = self.nodes.clone();
        for (element, theirs) in &other.nodes {
            let ours = nodes.entry(element.clone()).or_default();
            ours.member |= theirs.member;
            ours.children = ours.children.union(&theirs.children);
        }
        FieldSet { nodes }
    }

    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        self.combine(|element, ours| {
            let theirs = other.nodes.get(element)?;
            let children = ours.children.intersection(&theirs.children);
            Some(FieldSetNode { member: ours.member && theirs.member, children })
        })
    }

    /// Returns the members of this set that are not in `other`. Children of a removed member stay.
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        self.combine(|element, ours| match other.nodes.get(element) {
            None => Some(ours.clone()),
            Some(theirs) => {
                let children = ours.children.difference(&theirs.children);
                Some(FieldSetNode { member: ours.member && !theirs.member, children })
            }
        })
    }

    /// The part of this set at or below one of the top-level fields that `keep` names.
    pub(super) fn only_fields(&self, keep: impl Fn(&str) -> bool) -> FieldSet {
        self.combine(|element, node| match element {
            Element::Field(name) if keep(name) => Some(node.clone()),
            _ => None,
        })
    }

    /// Returns this set, in which every field that leads to a member is a member too. Items of lists are not:
    /// they exist only as long as an owner names the item itself.
    pub(super) fn with_containers(&self) -> FieldSet {
        self.combine(|element, node| {
            let container = matches!(element, Element::Field(_));
            Some(FieldSetNode { member: node.member || container, children: node.children.with_containers() })
        })
    }

    pub(super) fn node(&self, element: &Element) -> Option<&FieldSetNode> {
        self.nodes.get(element)
    }

    /// Puts `node` at `element`, unless it is empty.
    pub(super) fn put(&mut self, element: Element, node: FieldSetNode) {
        if node.member || !node.children.is_empty() {
            self.nodes.insert(element, node);
        }
    }

    fn combine(&self, decide: impl Fn(&Element, &FieldSetNode) -> Option<FieldSetNode>) -> FieldSet {
        let mut set = FieldSet::default();
        for (element, node) in &self.nodes {
            if let Some(node) = decide(element, node) {
                set.put(element.clone(), node);
            }
        }
        set
    }

    fn collect(&self, prefix: &mut Vec<Element>, paths: &mut Vec<FieldPath>) {
        for (element, node) in &self.nodes {
            prefix.push(element.clone());
            if node.member {
                paths.push(FieldPath(prefix.clone()));
            }
            node.children.collect(prefix, paths);
            prefix.pop();
        }
    }
}

impl FieldSetNode {
    fn parse(fields: &Value, depth: usize, budget: &mut usize) -> Result<FieldSetNode, FieldSetError> {
        let fields = fields.as_object().ok_or(FieldSetError::NotAnObject)?;
        let mut node = FieldSetNode { member: fields.is_empty(), ..FieldSetNode::default() };
        for (text, below) in fields {
            if text == "." {
                node.member = true;
                continue;
            }
            if depth == DEPTH_MAX {
                return Err(FieldSetError::TooDeep);
            }
            *budget = budget.checked_sub(1).ok_or(FieldSetError::TooLarge)?;
            let child = FieldSetNode::parse(below, depth + 1, budget)?;
            node.children.put(Element::parse(text)?, child);
        }
        Ok(node)
    }

    fn print(&self) -> Value {
        if self.children.is_empty() {
            return Value::Object(Map::new());
        }
        let mut fields = self.children.print();
        if self.member {
            fields["."] = Value::Object(Map::new());
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_set_names_its_members_and_not_what_leads_to_them() {
        let set = FieldSet::parse(&json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {".": {}, "f:status": {}}}},
        }))
        .unwrap();
        let shown: Vec<String> = set.paths().iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                ".metadata.labels",
                ".metadata.labels.app",
                ".status.conditions[type=\"Ready\"]",
                ".status.conditions[type=\"Ready\"].status",
            ]
        );
        assert_eq!(FieldSet::parse(&set.print()), Ok(set));
    }

    #[test]
    fn foreign_sets_are_bounded_in_depth_and_size() {
        let nested = |levels: usize| (0..levels).fold(json!({}), |inner, _| json!({ "f:a": inner }));
        assert!(FieldSet::parse(&nested(DEPTH_MAX)).is_ok());
        assert_eq!(FieldSet::parse(&nested(DEPTH_MAX + 1)), Err(FieldSetError::TooDeep));

        let wide = |count: usize| Value::Object((0..count).map(|i| (format!("f:{i}"), json!({}))).collect());
        assert!(FieldSet::parse(&wide(ELEMENTS_MAX)).is_ok());
        assert_eq!(FieldSet::parse(&wide(ELEMENTS_MAX + 1)), Err(FieldSetError::TooLarge));
    }

    #[test]
    fn a_set_that_is_no_object_is_refused() {
        for fields in [json!(null), json!([]), json!({"f:a": null}), json!({"f:a": {"f:b": 1}})] {
            assert_eq!(FieldSet::parse(&fields), Err(FieldSetError::NotAnObject), "{fields}");
        }
    }

    #[test]
    fn taking_a_member_away_leaves_its_children() {
        let both = FieldSet::of_fields(&[&["a"], &["a", "b"]]);
        let parent = FieldSet::of_fields(&[&["a"]]);
        assert_eq!(both.difference(&parent), FieldSet::of_fields(&[&["a", "b"]]));
        assert_eq!(both.difference(&both), FieldSet::default());
    }
}
