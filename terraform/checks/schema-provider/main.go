// A Terraform provider that knows the types of another one and does nothing: its schema is read from the file that
// SCHEMA_FILE names. With it `terraform validate`, and `terraform test` with a mocked provider, check every resource,
// attribute and block without the real provider.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

type attribute struct {
	Type     json.RawMessage `json:"type"`
	Required bool            `json:"required"`
	Optional bool            `json:"optional"`
	Computed bool            `json:"computed"`
}

type nested struct {
	block
	Set bool  `json:"set"`
	Min int64 `json:"min"`
	Max int64 `json:"max"`
}

type block struct {
	Attributes map[string]attribute `json:"attributes"`
	Blocks     map[string]nested    `json:"blocks"`
}

type schemas struct {
	Resources   map[string]block `json:"resources"`
	DataSources map[string]block `json:"data_sources"`
	Provider    block            `json:"provider"`
}

func (b block) convert() *tfprotov6.SchemaBlock {
	out := &tfprotov6.SchemaBlock{}
	for name, it := range b.Attributes {
		kind, err := tftypes.ParseJSONType(it.Type) //nolint:staticcheck // the only way from JSON
		if err != nil {
			log.Fatalf("type of %s: %v", name, err)
		}
		out.Attributes = append(out.Attributes, &tfprotov6.SchemaAttribute{
			Name: name, Type: kind, Required: it.Required, Optional: it.Optional, Computed: it.Computed,
		})
	}
	for name, it := range b.Blocks {
		mode := tfprotov6.SchemaNestedBlockNestingModeList
		if it.Set {
			mode = tfprotov6.SchemaNestedBlockNestingModeSet
		}
		out.BlockTypes = append(out.BlockTypes, &tfprotov6.SchemaNestedBlock{
			TypeName: name, Nesting: mode, MinItems: it.Min, MaxItems: it.Max, Block: it.convert(),
		})
	}
	return out
}

// What is not implemented is never asked of a provider that is validated against or mocked.
type server struct {
	tfprotov6.ProviderServer
	schema *tfprotov6.GetProviderSchemaResponse
}

func (s server) GetMetadata(context.Context, *tfprotov6.GetMetadataRequest) (*tfprotov6.GetMetadataResponse, error) {
	return &tfprotov6.GetMetadataResponse{ServerCapabilities: s.schema.ServerCapabilities}, nil
}

func (s server) GetProviderSchema(context.Context, *tfprotov6.GetProviderSchemaRequest) (*tfprotov6.GetProviderSchemaResponse, error) {
	return s.schema, nil
}

func (server) ValidateProviderConfig(_ context.Context, r *tfprotov6.ValidateProviderConfigRequest) (*tfprotov6.ValidateProviderConfigResponse, error) {
	return &tfprotov6.ValidateProviderConfigResponse{PreparedConfig: r.Config}, nil
}

func (server) ConfigureProvider(context.Context, *tfprotov6.ConfigureProviderRequest) (*tfprotov6.ConfigureProviderResponse, error) {
	return &tfprotov6.ConfigureProviderResponse{}, nil
}

func (server) StopProvider(context.Context, *tfprotov6.StopProviderRequest) (*tfprotov6.StopProviderResponse, error) {
	return &tfprotov6.StopProviderResponse{}, nil
}

func (server) ValidateResourceConfig(context.Context, *tfprotov6.ValidateResourceConfigRequest) (*tfprotov6.ValidateResourceConfigResponse, error) {
	return &tfprotov6.ValidateResourceConfigResponse{}, nil
}

func (server) ValidateDataResourceConfig(context.Context, *tfprotov6.ValidateDataResourceConfigRequest) (*tfprotov6.ValidateDataResourceConfigResponse, error) {
	return &tfprotov6.ValidateDataResourceConfigResponse{}, nil
}

func main() {
	text, err := os.ReadFile(os.Getenv("SCHEMA_FILE"))
	if err != nil {
		log.Fatal(err)
	}
	var all schemas
	if err := json.Unmarshal(text, &all); err != nil {
		log.Fatal(err)
	}
	of := func(blocks map[string]block) map[string]*tfprotov6.Schema {
		out := map[string]*tfprotov6.Schema{}
		for name, it := range blocks {
			out[name] = &tfprotov6.Schema{Block: it.convert()}
		}
		return out
	}
	schema := &tfprotov6.GetProviderSchemaResponse{
		Provider:          &tfprotov6.Schema{Block: all.Provider.convert()},
		ResourceSchemas:   of(all.Resources),
		DataSourceSchemas: of(all.DataSources),
	}
	err = tf6server.Serve("registry.terraform.io/hashicorp/aws", func() tfprotov6.ProviderServer { return server{schema: schema} })
	if err != nil {
		log.Fatal(err)
	}
}
