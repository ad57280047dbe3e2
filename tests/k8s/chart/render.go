// Renders a Helm chart with Go's templates and sprig, as `helm template` does, for machines without helm.
// Usage: render CHART RELEASE NAMESPACE [VALUES.yaml]. Built with Debian's packages (golang-go, sprig, yaml.v3) and GO111MODULE=off.
// Knows what our chart uses: values, .Release, .Chart, include, required, toYaml. No dependencies, hooks or lookups.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

func main() {
	if len(os.Args) < 4 {
		fail("usage: render CHART RELEASE NAMESPACE [VALUES.yaml]")
	}
	chart, release, namespace := os.Args[1], os.Args[2], os.Args[3]
	values := read(filepath.Join(chart, "values.yaml"))
	if len(os.Args) > 4 {
		merge(values, read(os.Args[4]))
	}
	about := read(filepath.Join(chart, "Chart.yaml"))
	data := map[string]interface{}{
		"Values":  values,
		"Release": map[string]interface{}{"Name": release, "Namespace": namespace, "Service": "Helm"},
		"Chart":   map[string]interface{}{"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
	}
	all := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		text, isText := value.(string)
		list, isList := value.([]interface{})
		if value == nil || isText && text == "" || isList && len(list) == 0 {
			return nil, fmt.Errorf("%s", message)
		}
		return value, nil
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	all.Funcs(functions)
	files, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	check(err)
	sort.Strings(files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		check(err)
		_, err = all.New(filepath.Base(file)).Parse(string(text))
		check(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".yaml") {
			var out bytes.Buffer
			check(all.ExecuteTemplate(&out, filepath.Base(file), data))
			fmt.Printf("---\n%s\n", strings.TrimSpace(out.String()))
		}
	}
}

func read(path string) map[string]interface{} {
	text, err := os.ReadFile(path)
	check(err)
	values := map[string]interface{}{}
	check(yaml.Unmarshal(text, &values))
	return values
}

// Maps are merged, everything else is replaced, as helm does.
func merge(into, from map[string]interface{}) {
	for key, value := range from {
		old, isMap := into[key].(map[string]interface{})
		given, isGiven := value.(map[string]interface{})
		if isMap && isGiven {
			merge(old, given)
		} else {
			into[key] = value
		}
	}
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, "render:", message)
	os.Exit(1)
}
